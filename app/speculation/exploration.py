"""Decide when models draft without being expected to pay."""

MIN_WAIT_S = 0.03  # the shortest wait for drafts, within the policy, and the first one while nothing is known of them
FIRST_WAITS = 4  # of which each is twice as long as the one before
FIRST_ROUNDS = 8  # with models, where these pay, before model-free drafters alone are chosen
EVERY = 16  # rounds from one trial to the next, at least
LATEST = 1024  # rounds after which a trial is due whatever it takes
TRIAL_ROUNDS = 2  # of a trial: in the first drafters catch up, the second shows what drafts take
TRIAL_SHARE = 0.01  # of the time since models drafted last, that a trial costs at most


class Exploration:
    def __init__(self) -> None:
        self._first_waits = 0
        self._model_rounds = 0
        self._silent_rounds = 0  # since models drafted last
        self._silent_s = 0.0  # what these took
        self._trial_rounds = 0  # left of the trial under way

    def is_due(self, loss_s: float, *, pays: bool) -> bool:
        """Tell whether models draft in the next round though another way is expected to be faster.

        `loss_s`: a trial's expected cost; `pays`: models are expected to beat plain decoding, or there are no other
        drafters.
        """
        if self._trial_rounds or (pays and self._model_rounds < FIRST_ROUNDS):
            return True
        is_cheap = loss_s <= TRIAL_SHARE * self._silent_s
        return self._silent_rounds >= EVERY and (is_cheap or self._silent_rounds >= LATEST)

    def record(self, step_s: float, *, has_models: bool, is_trial: bool) -> None:
        if not has_models:
            self._silent_rounds += 1
            self._silent_s += step_s
            self._trial_rounds = 0
            return
        self._model_rounds += 1
        if is_trial and (self._trial_rounds or self._silent_rounds >= EVERY):
            self._trial_rounds = (self._trial_rounds or TRIAL_ROUNDS) - 1
        if not self._trial_rounds:
            self._silent_rounds, self._silent_s = 0, 0.0

    def first_wait_s(self) -> float:
        if self._first_waits >= FIRST_WAITS:
            return 0.0
        self._first_waits += 1
        return MIN_WAIT_S * 2 ** (self._first_waits - 1)
