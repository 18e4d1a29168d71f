"""The settings of `notify`: who is told of an alert, through what, how soon and how often."""

from dataclasses import dataclass

from kvpressure.settings import ConfigError, setting

_DAY = 86_400.0

_FORGOTTEN = 5 * _DAY
"""Alertmanager forgets after this (its --data.retention) that it has told of something, and tells again."""

_SECRETS = {"slack": "Slack's API URL", "pagerduty": "PagerDuty's routing key"}
"""What a receiver cannot do without, and that is a secret."""


@dataclass(frozen=True, slots=True)
class NotifyConfig:
    """
    Who is told: a critical alert pages, a warning opens a ticket, info goes nowhere.

    Secrets never stand in the configuration, only the files that hold them: Alertmanager reads them when it notifies.

    Raises:
        ConfigError: a receiver lacks its secret, or would be told again sooner than of changes.
    """

    group_by: tuple[str, ...] = setting(
        ("cluster", "namespace", "model_name"),
        "Alerts with the same values of these labels are one page, and one ticket: the ranks and replicas of a model. "
        "Add instance where each replica has people of its own.",
        "labels",
    )
    page: str = setting("webhook", "What critical alerts page through: webhook, slack or pagerduty.", "receiver")
    page_webhook_url: str = setting(
        "http://127.0.0.1:9095/page", "Where the webhook of pages listens, as seen from Alertmanager.", "webhook"
    )
    page_slack_channel: str = setting("#kv-pages", "Slack channel of pages.", "text")
    page_secret_file: str = setting(
        "",
        "File with the secret of what pages: Slack's API URL, PagerDuty's routing key, or the webhook's bearer token "
        "(none where empty). In Kubernetes the last part of this path is the key in the secret.",
        "file",
    )
    page_wait: float = setting(
        30.0,
        "From the first critical alert of a group to its page. Ranks that storm together come in one page, and what "
        "another alert explains is held back; beside the four minutes that tell a storm from an onset it is little. "
        "Keep it above two evaluations of the rules.",
        "duration",
        high=3600,
    )
    page_interval: float = setting(
        300.0,
        "A page that changed, or ended, is told again no sooner than this after the last time. Shorter tells of each "
        "further rank on its own; longer lets a pager ring on after the storm.",
        "duration",
        low=1,
        high=_DAY,
    )
    page_repeat: float = setting(
        14_400.0,
        "A page that goes on is told again after this long: twice a shift, for whoever takes it over.",
        "duration",
        low=1,
        high=_FORGOTTEN,
    )
    ticket: str = setting("webhook", "What warnings open tickets through: webhook, slack or pagerduty.", "receiver")
    ticket_webhook_url: str = setting(
        "http://127.0.0.1:9095/ticket", "Where the webhook of tickets listens, as seen from Alertmanager.", "webhook"
    )
    ticket_slack_channel: str = setting("#kv-tickets", "Slack channel of tickets.", "text")
    ticket_secret_file: str = setting("", "As page-secret-file, for what opens tickets.", "file")
    ticket_wait: float = setting(
        300.0,
        "From the first warning of a group to its ticket. A cause shows before its symptom: meanwhile the page may "
        "come that makes the ticket needless. Keep it above page-wait.",
        "duration",
        high=_DAY,
    )
    ticket_interval: float = setting(
        3600.0,
        "A ticket that changed, or ended, is told again no sooner than this after the last time: nobody watches a "
        "ticket by the minute.",
        "duration",
        low=1,
        high=_DAY,
    )
    ticket_repeat: float = setting(
        _DAY,
        "A ticket that is still true is told again after this long: once a day.",
        "duration",
        low=1,
        high=_FORGOTTEN,
    )

    def __post_init__(self) -> None:
        """Refuse what no single setting can tell."""
        for name, kind, secret, interval, repeat in (
            ("page", self.page, self.page_secret_file, self.page_interval, self.page_repeat),
            ("ticket", self.ticket, self.ticket_secret_file, self.ticket_interval, self.ticket_repeat),
        ):
            if kind in _SECRETS and not secret:
                raise ConfigError(
                    f"notify.{name} is {kind}, which needs a secret; set notify.{name}-secret-file to the file with "
                    f"{_SECRETS[kind]}"
                )
            if repeat < interval:
                raise ConfigError(
                    f"notify.{name}-repeat ({repeat:g} s) is shorter than notify.{name}-interval ({interval:g} s); "
                    "raise the one or lower the other"
                )
