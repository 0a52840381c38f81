"""The books of one batch, in memory: operations change wallets, accounts and sessions, and every
change of a balance leaves an entry.

For each wallet, before and after every operation: the sum of its entries is what is available;
what was paid in is available, reserved or spent; what is reserved is held by its sessions.
Amounts are nano-dollars. What is available may go below zero, by settlements only.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from billing_app.core.operations import (
    AccountRow,
    Credit,
    Done,
    Entry,
    Fee,
    Ignored,
    Kind,
    Limits,
    MarkRefundDue,
    Operation,
    Outcome,
    Raise,
    Reap,
    Refund,
    Refused,
    Reserve,
    SessionRow,
    Settle,
    UnknownWalletError,
    WalletRow,
)
from billing_app.core.session import HOLDING, Event, State, after


@dataclass(slots=True, kw_only=True)
class Books:
    """The rows that a batch works on, and the entries that it makes, in their order."""

    now: datetime
    wallets: dict[int, WalletRow] = field(default_factory=dict)
    accounts: dict[int, AccountRow] = field(default_factory=dict)
    sessions: dict[uuid.UUID, SessionRow] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    # Idempotency keys of credits that were carried out.
    used_keys: set[uuid.UUID] = field(default_factory=set)

    def apply(self, operation: Operation) -> Outcome:
        """Carry out one operation; raise UnknownWalletError."""
        match operation:
            case Reserve():
                outcome = self._reserve(operation)
            case Raise():
                outcome = self._raise(operation)
            case Settle():
                outcome = self._settle(operation)
            case MarkRefundDue():
                outcome = self._mark_refund_due(operation)
            case Refund():
                outcome = self._give_back(operation.session_id, Event.REFUND)
            case Reap():
                outcome = self._give_back(operation.session_id, Event.REAP)
            case Fee():
                outcome = self._fee(operation)
            case Credit():
                outcome = self._credit(operation)
        return outcome

    def _reserve(self, op: Reserve) -> Outcome:
        if op.session_id in self.sessions:
            return Ignored(state=self.sessions[op.session_id].state)
        wallet = self._wallet(op.wallet_id)
        refused = self._refusal(wallet, op.token_id, op.limits, op.amount_nusd)
        if refused is not None:
            return refused
        session = self._session(op, State.RESERVED)
        session.lease_id = op.lease_id
        self._hold(session, op.amount_nusd)
        return Done(balance_nusd=wallet.available_nusd)

    def _raise(self, op: Raise) -> Outcome:
        session = self.sessions.get(op.session_id)
        if session is None or after(session.state, Event.RAISE) is None:
            return Ignored(state=session.state if session else None)
        wallet = self._wallet(session.wallet_id)
        more_nusd = op.amount_nusd - session.reserved_nusd
        if more_nusd > 0:
            refused = self._refusal(wallet, session.token_id, op.limits, more_nusd)
            if refused is not None:  # told as of the whole: what it holds is there, too
                return replace(
                    refused,
                    needed_nusd=op.amount_nusd,
                    available_nusd=refused.available_nusd + session.reserved_nusd,
                )
            self._hold(session, more_nusd)
        return Done(balance_nusd=wallet.available_nusd)

    def _settle(self, op: Settle) -> Outcome:
        session = self.sessions.get(op.session_id)
        if session is None:
            self._wallet(op.wallet_id)
            session = self._session(op, State.RESERVED)  # trusted: nothing is held
        elif after(session.state, Event.SETTLE) is None:
            return Ignored(state=session.state)
        self._release(session, Kind.SETTLE, cost_nusd=op.amount_nusd)
        session.settled_nusd = op.amount_nusd
        return self._end(session, State.SETTLED)

    def _mark_refund_due(self, op: MarkRefundDue) -> Outcome:
        session = self.sessions.get(op.session_id)
        if session is None or after(session.state, Event.FAIL) is None:
            return Ignored(state=session.state if session else None)
        session.state = State.REFUND_DUE
        return Done(balance_nusd=self._wallet(session.wallet_id).available_nusd)

    def _give_back(self, session_id: uuid.UUID, event: Event) -> Outcome:
        session = self.sessions.get(session_id)
        state = after(session.state, event) if session else None
        if session is None or state is None:
            return Ignored(state=session.state if session else None)
        self._release(session, Kind.REFUND)
        return self._end(session, state)

    def _fee(self, op: Fee) -> Outcome:
        wallet = self._wallet(op.wallet_id)
        session = self.sessions.get(op.session_id)
        if session is None:  # nothing was held
            session = self._session(op, State.REFUNDED)
            session.ended_at = self.now
        if session.fee_nusd or session.state is State.SETTLED:
            return Ignored(state=session.state)
        session.fee_nusd = op.amount_nusd
        wallet.available_nusd -= op.amount_nusd
        wallet.spent_nusd += op.amount_nusd
        account = self._account(op.token_id)
        account.spent_nusd += op.amount_nusd
        account.count(op.amount_nusd, since=session.created_at)
        self._enter(session, Kind.FEE, -op.amount_nusd, reason=op.reason)
        return Done(balance_nusd=wallet.available_nusd)

    def _credit(self, op: Credit) -> Outcome:
        wallet = self._wallet(op.wallet_id)
        if op.idempotency_key is not None:
            if op.idempotency_key in self.used_keys:
                return Ignored()
            self.used_keys.add(op.idempotency_key)
        wallet.available_nusd += op.amount_nusd
        wallet.credited_nusd += op.amount_nusd
        self.entries.append(
            Entry(
                wallet_id=wallet.id,
                token_id=None,
                session_id=None,
                kind=op.kind,
                amount_nusd=op.amount_nusd,
                balance_nusd=wallet.available_nusd,
                reason=op.reason,
                actor_id=op.actor_id,
                idempotency_key=op.idempotency_key,
            )
        )
        return Done(balance_nusd=wallet.available_nusd)

    # -- parts ---------------------------------------------------------------------------

    def _wallet(self, wallet_id: int) -> WalletRow:
        try:
            return self.wallets[wallet_id]
        except KeyError:
            raise UnknownWalletError(f"wallet {wallet_id} does not exist") from None

    def _account(self, token_id: int) -> AccountRow:
        """Return the token's account as of today; a token that was never counted has none."""
        account = self.accounts.get(token_id)
        if account is None:
            account = self.accounts[token_id] = AccountRow(token_id=token_id)
        account.turn(self.now.astimezone(UTC).date())
        return account

    def _session(self, op: Reserve | Settle | Fee, state: State) -> SessionRow:
        session = SessionRow(
            id=op.session_id,
            request_id=op.request_id,
            wallet_id=op.wallet_id,
            token_id=op.token_id,
            state=state,
            created_at=self.now,
        )
        self.sessions[op.session_id] = session
        return session

    def _refusal(
        self, wallet: WalletRow, token_id: int | None, limits: Limits, amount_nusd: int
    ) -> Refused | None:
        """Return what does not cover `amount_nusd`, the wallet first; None if all do."""
        left = {"wallet": wallet.available_nusd}
        if token_id is not None:
            account = self._account(token_id)
            used_nusd = account.spent_nusd + account.reserved_nusd
            for kind, limit_nusd, counted_nusd in (
                ("token", limits.total_nusd, used_nusd),
                ("daily", limits.daily_nusd, account.day_nusd),
                ("monthly", limits.monthly_nusd, account.month_nusd),
            ):
                if limit_nusd is not None:
                    left[kind] = limit_nusd - counted_nusd
        for kind, left_nusd in left.items():
            if left_nusd < amount_nusd:
                return Refused(kind=kind, needed_nusd=amount_nusd, available_nusd=left_nusd)
        return None

    def _hold(self, session: SessionRow, amount_nusd: int) -> None:
        wallet = self._wallet(session.wallet_id)
        wallet.available_nusd -= amount_nusd
        wallet.reserved_nusd += amount_nusd
        session.reserved_nusd += amount_nusd
        if session.token_id is not None:
            account = self._account(session.token_id)
            account.reserved_nusd += amount_nusd
            account.count(amount_nusd, since=session.created_at)
        self._enter(session, Kind.RESERVE, -amount_nusd)

    def _release(self, session: SessionRow, kind: Kind, *, cost_nusd: int = 0) -> None:
        """Take `cost_nusd` from what the session holds, if it holds anything, and give back the
        rest; what is missing comes from the wallet."""
        held_nusd = session.reserved_nusd if session.state in HOLDING else 0
        wallet = self._wallet(session.wallet_id)
        wallet.available_nusd += held_nusd - cost_nusd
        wallet.reserved_nusd -= held_nusd
        wallet.spent_nusd += cost_nusd
        if session.token_id is not None:
            account = self._account(session.token_id)
            account.reserved_nusd -= held_nusd
            account.spent_nusd += cost_nusd
            account.count(cost_nusd - held_nusd, since=session.created_at)
        self._enter(session, kind, held_nusd - cost_nusd)

    def _end(self, session: SessionRow, state: State) -> Done:
        session.state, session.ended_at, session.lease_id = state, self.now, None
        return Done(balance_nusd=self._wallet(session.wallet_id).available_nusd)

    def _enter(
        self, session: SessionRow, kind: Kind, amount_nusd: int, *, reason: str = ""
    ) -> None:
        self.entries.append(
            Entry(
                wallet_id=session.wallet_id,
                token_id=session.token_id,
                session_id=session.id,
                kind=kind,
                amount_nusd=amount_nusd,
                balance_nusd=self._wallet(session.wallet_id).available_nusd,
                reason=reason,
            )
        )
