"""All substrings of one lane's text, how often each occurred and what followed. Knows token ids and nothing else.

A suffix automaton (Blumer et al. 1985): every substring of the text is spelled by a walk from state 0, and two
substrings share a state when they end at the same positions. For the text 1 2 1 3:

    state   substrings             link   count
      0     (the empty one)          -      -
      1     1                        0      2        walks: 0 -1-> 1 -2-> 2 -1-> 3 -3-> 4
      2     1 2, 2                   0      1               0 -2-> 2, 0 -3-> 4, 1 -3-> 4
      3     1 2 1, 2 1               1      1
      4     1 2 1 3, 2 1 3, 1 3, 3   0      1

The link of a state is the state of its longest suffix that also ends elsewhere. So links lead from the longest known
context to shorter and shorter ones, each with more continuations than the one before.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from operator import itemgetter

#: longest context whose continuations are counted
MAX_CONTEXT = 32
#: a state with one move keeps it as one number: the token above these bits, the next state in them
_STATE_BITS = 32
_STATE_MASK = (1 << _STATE_BITS) - 1
_NO_MOVES = -1
#: a ranking is made anew once its context was continued more often by this share: 1 / 16
_STALE_SHIFT = 4

#: the moves of a state: none, one, or next state by token
_Moves = int | dict[int, int]
_COUNT = itemgetter(1)


#: where a reader stands: a state, and the number of tokens of the context it read last
Place = tuple[int, int]
#: length of a context, how often each token followed it, falling, and the sum of the counts
Continuations = tuple[int, dict[int, int], int]


class SuffixAutomaton:
    """Grows by one token at a time, in constant time on average; nothing is ever scanned again.

    What the counts mean: the count of a state is the number of positions where its substrings end, exact for every
    substring of up to ``max_context + 1`` tokens and not kept for longer ones. A new token adds one to the states of
    all suffixes of the text. There may be as many as the text is long, so the walk along the links starts at the
    longest suffix that is counted, which is followed from token to token like any reader's place: at most
    ``max_context + 1`` states, three or four in ordinary text. A state that is split off another takes over its count,
    since its substrings ended wherever the other's did.

    Args:
        max_context: longest context whose continuations are counted.
    """

    def __init__(self, max_context: int = MAX_CONTEXT) -> None:
        if max_context < 1:
            raise ValueError(f"a context has at least one token, got max_context {max_context}")
        self.max_context = max_context
        self._moves: list[_Moves] = [_NO_MOVES]
        self._link = array("i", [-1])
        self._longest = array("i", [0])  # tokens of a state's longest substring
        self._count = array("i", [0])
        self._latest = array("i", [0])  # tokens of the text up to the latest end of a state's substrings
        self._last = 0  # the state of the whole text
        self._counted: Place = (0, 0)  # the longest suffix that is counted
        self._tokens = 0
        self._ranked: dict[int, tuple[dict[int, int], int]] = {}  # rankings and their totals

    def __len__(self) -> int:
        return self._tokens

    @property
    def states(self) -> int:
        """Number of states, at most twice the number of tokens."""
        return len(self._link)

    def extend(self, tokens: Iterable[int]) -> None:
        """Takes in tokens that follow those seen so far."""
        for token in tokens:
            self._append(token)
            self._count_suffixes(token)

    def _append(self, token: int) -> None:
        link, longest = self._link, self._longest
        self._tokens += 1
        new = self._add_state(_NO_MOVES, self._tokens)
        state = self._last
        self._last = new
        while state >= 0 and self._add_move(state, token, new):
            state = link[state]
        if state < 0:
            return
        known = self.move(state, token)
        assert known is not None, "the walk above ended at a state with this move"
        link[new] = known if longest[known] == longest[state] + 1 else self._split(known, state, token)

    def _add_state(self, moves: _Moves, longest: int) -> int:
        self._moves.append(moves)
        self._link.append(0)
        self._longest.append(longest)
        self._count.append(0)
        self._latest.append(0)
        return len(self._link) - 1

    def _add_move(self, state: int, token: int, target: int) -> bool:
        """False, and nothing done, when there is a move on ``token`` already."""
        known = self._moves[state]
        if isinstance(known, dict):
            if token in known:
                return False
            known[token] = target
        elif known == _NO_MOVES:
            self._moves[state] = token << _STATE_BITS | target
        elif known >> _STATE_BITS == token:
            return False
        else:
            self._moves[state] = {known >> _STATE_BITS: known & _STATE_MASK, token: target}
        return True

    def _split(self, state: int, shorter: int, token: int) -> int:
        """A state of its own for what ``shorter`` and its suffixes spell with ``token``, so far part of ``state``."""
        moves, link = self._moves, self._link
        known = moves[state]
        copy = self._add_state(dict(known) if isinstance(known, dict) else known, self._longest[shorter] + 1)
        link[copy] = link[state]
        link[state] = copy
        self._count[copy] = self._count[state]
        self._latest[copy] = self._latest[state]
        while shorter >= 0 and self.move(shorter, token) == state:
            row = moves[shorter]
            if isinstance(row, dict):
                row[token] = copy
            else:
                moves[shorter] = token << _STATE_BITS | copy
            shorter = link[shorter]
        return copy

    def _count_suffixes(self, token: int) -> None:
        link, count, latest = self._link, self._count, self._latest
        # the state may have been split a moment ago, but both parts have the same moves
        state, length = self._counted
        target = self.move(state, token)
        assert target is not None, "every suffix of the text before was just continued by this token"
        self._counted = self._shortened(target, min(length + 1, self.max_context + 1))
        state, position = self._counted[0], self._tokens
        while state:
            count[state] += 1
            latest[state] = position
            state = link[state]

    def _shortened(self, state: int, length: int) -> Place:
        """The place of the last ``length`` tokens of what ``state`` spells."""
        link, longest = self._link, self._longest
        while state and longest[link[state]] >= length:
            state = link[state]
        return (state, length)

    # reading

    def move(self, state: int, token: int) -> int | None:
        """The state after ``token``; None when nothing that ``state`` spells was ever followed by it."""
        known = self._moves[state]
        if isinstance(known, dict):
            return known.get(token)
        return known & _STATE_MASK if known >> _STATE_BITS == token else None

    def place(self) -> Place:
        """The longest suffix of the text, of at most ``max_context`` tokens, that occurred before."""
        before = self._link[self._last]
        if before < 0:
            return (0, 0)
        length = self._longest[before]
        if length <= self.max_context:
            return (before, length)
        return self._shortened(self._counted[0], self.max_context)

    def advance(self, place: Place, token: int) -> Place:
        """The longest known context after one more token: the old one's longest suffix that ``token`` ever followed."""
        state, length = place
        target = self.move(state, token)
        while target is None:
            state = self._link[state]
            if state < 0:
                return (0, 0)
            length = self._longest[state]
            target = self.move(state, token)
        if length < self.max_context:
            return (target, length + 1)
        return self._shortened(target, self.max_context)

    def continuations(self, place: Place, most: int) -> list[Continuations]:
        """What followed the context, and its ever shorter suffixes where more was known; longest first, none empty.

        A context and its suffixes that were always continued by one token say the same, the shorter ones more often:
        they are one entry, with the length of the longest and the count of the shortest. Of the others there are at
        most ``most``.

        Counts are exact for contexts continued fewer than 16 times. Beyond, a ranking is kept until its total has grown
        by a sixteenth, since a common word may be continued in a thousand ways.
        """
        state, length = place
        all_moves, link, count, latest, end = self._moves, self._link, self._count, self._latest, self._tokens
        found: list[Continuations] = []
        sure = 0, 0, 0  # length of the longest, token and count
        while state > 0 and len(found) < most:
            moves = all_moves[state]
            # the end of the text is an occurrence, too, but nothing follows it yet
            total = count[state] - (latest[state] == end)
            if isinstance(moves, dict):
                counts, total = self._ranking(state, moves, total)
                found.append((length, counts, total))
            elif total:
                sure = sure[0] or length, moves >> _STATE_BITS, total
            state = link[state]
            length = self._longest[state]
        if sure[0]:
            longest, token, total = sure
            # what was continued in one way only is no suffix of what was continued in several
            found.insert(0, (longest, {token: total}, total))
        return found

    def _ranking(self, state: int, moves: dict[int, int], total: int) -> tuple[dict[int, int], int]:
        known = self._ranked.get(state)
        if known is None or total - known[1] > known[1] >> _STALE_SHIFT:
            # new continuations before old ones among equals: moves are in order of their first use
            counted = zip(reversed(moves), map(self._count.__getitem__, reversed(moves.values())), strict=True)
            known = self._ranked[state] = (dict(sorted(counted, key=_COUNT, reverse=True)), total)
        return known

    # checking

    def check_integrity(self) -> None:
        """Raises AssertionError when links, moves, lengths and counts do not fit together."""
        longest, link, count = self._longest, self._link, self._count
        assert self.states <= max(2, 2 * self._tokens), f"{self.states} states for {self._tokens} tokens"
        assert longest[self._last] == self._tokens, "the last state does not spell the whole text"
        extended = [0] * self.states  # counts of the states that link to a state
        for state in range(1, self.states):
            assert longest[link[state]] < longest[state], f"the link of state {state} leads to no shorter one"
            extended[link[state]] += count[state]
            for token, target in self._items(state):
                assert longest[target] > longest[state], f"the move of state {state} on {token} gets no longer"
                assert longest[link[target]] <= longest[link[state]] + 1, (
                    f"the move of state {state} on {token} leads past its shorter substrings"
                )
        for state in range(1, self.states):
            if longest[link[state]] <= self.max_context:
                assert count[state] >= max(1, extended[state]), (
                    f"state {state} counts {count[state]} ends, its extensions to the left {extended[state]}"
                )

    def _items(self, state: int) -> Iterable[tuple[int, int]]:
        moves = self._moves[state]
        if isinstance(moves, dict):
            return moves.items()
        return () if moves == _NO_MOVES else [(moves >> _STATE_BITS, moves & _STATE_MASK)]
