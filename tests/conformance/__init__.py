"""torch's own operator database, run on a device and compared with the CPU.

    python -m tests.conformance --resume          every operator, a report, exit code 1 on news
    python -m tests.conformance --only svd,qr     some

samples.py makes inputs, judge.py runs one operator, expectations.py says what is expected of it,
worker.py runs operators in a process that may die, __main__.py drives workers, report.py tells.
"""
