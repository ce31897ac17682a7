"""`branchwise compare`: what is said about tree attention, claim by claim, beside the measurement that settles it.

claims.py                     what is said, and what is expected to be found
effort.py subject.py runs.py  how much is measured, on what, and the texts that several rows look at
inputs.py ... shares.py       one group of measurements each: numbers, then what they say about a claim
verdicts.py finding.py exhibits.py   from numbers to a verdict, and what is shown beside it
report.py                     all rows as one record, which `terminal` prints and `page` draws
"""
