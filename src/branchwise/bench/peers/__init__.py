"""Other libraries beside this one: same weights, prompts, limits and threads, in turns, each in its own process.

job        parent: which configurations, on which prompts  -> one record
remote     parent: a peer behind a pipe, as methods that `runner` can call
worker     child: loads one peer, answers one request at a time
*_peer     child: one library each
summary, report, chart        figures, tables, a picture
"""
