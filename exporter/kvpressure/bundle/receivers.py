"""Receivers of Alertmanager: a webhook, Slack or PagerDuty, in both of the forms that it is configured in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from kvpressure.bundle.config import BundleConfig

_TEXT = (
    "{{ range .Alerts }}*{{ .Labels.alertname }}* ({{ .Status }}): {{ .Annotations.summary }} "
    "{{ .Annotations.description }} {{ .Annotations.runbook_url }}\n{{ end }}"
)
"""All alerts of a group, a line each: several may have come together."""

_RUNBOOKS = "{{ range .Alerts.Firing }}{{ .Annotations.runbook_url }} {{ end }}"
"""For PagerDuty's details, not its links: it refuses an event with an empty link, and the page would be lost."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """
    Where one kind of notification goes.

    Args:
        name: in Alertmanager's configuration.
        kind: webhook, slack or pagerduty.
        severity: of its alerts, in PagerDuty's words, which are ours.
        url: of the webhook.
        channel: of Slack.
        secret_file: the file with its secret; empty where it has none.
        secret_name: the Kubernetes secret that holds the same.
    """

    name: str
    kind: str
    severity: str
    url: str
    channel: str
    secret_file: str
    secret_name: str


def page(name: str, config: BundleConfig) -> Receiver:
    """Where pages go."""
    notify = config.notify
    return Receiver(
        name=name,
        kind=notify.page,
        severity="critical",
        url=notify.page_webhook_url,
        channel=notify.page_slack_channel,
        secret_file=notify.page_secret_file,
        secret_name=config.kubernetes.secret,
    )


def ticket(name: str, config: BundleConfig) -> Receiver:
    """Where tickets go."""
    notify = config.notify
    return Receiver(
        name=name,
        kind=notify.ticket,
        severity="warning",
        url=notify.ticket_webhook_url,
        channel=notify.ticket_slack_channel,
        secret_file=notify.ticket_secret_file,
        secret_name=config.kubernetes.secret,
    )


def in_file(receiver: Receiver) -> dict[str, Any]:
    """As alertmanager.yml has it. Alertmanager 0.25 knows every key; it does not know a webhook's `url_file`."""
    sent = {"send_resolved": True} | _IN_FILE[receiver.kind](receiver)
    return {"name": receiver.name, f"{receiver.kind}_configs": [sent]}


def in_object(receiver: Receiver) -> dict[str, Any]:
    """As an AlertmanagerConfig (v1alpha1) has it."""
    sent = {"sendResolved": True} | _IN_OBJECT[receiver.kind](receiver)
    return {"name": receiver.name, f"{receiver.kind}Configs": [sent]}


def _webhook_in_file(receiver: Receiver) -> dict[str, Any]:
    token = {"authorization": {"credentials_file": receiver.secret_file}}
    return {"url": receiver.url} | ({"http_config": token} if receiver.secret_file else {})


def _slack_in_file(receiver: Receiver) -> dict[str, Any]:
    return {"api_url_file": receiver.secret_file, "channel": receiver.channel, "text": _TEXT}


def _pagerduty_in_file(receiver: Receiver) -> dict[str, Any]:
    return {
        "routing_key_file": receiver.secret_file,
        "severity": receiver.severity,
        "details": {"runbooks": _RUNBOOKS},
    }


def _webhook_in_object(receiver: Receiver) -> dict[str, Any]:
    token = {"authorization": {"credentials": _secret(receiver)}}
    return {"url": receiver.url} | ({"httpConfig": token} if receiver.secret_file else {})


def _slack_in_object(receiver: Receiver) -> dict[str, Any]:
    return {"apiURL": _secret(receiver), "channel": receiver.channel, "text": _TEXT}


def _pagerduty_in_object(receiver: Receiver) -> dict[str, Any]:
    return {
        "routingKey": _secret(receiver),
        "severity": receiver.severity,
        "details": [{"key": "runbooks", "value": _RUNBOOKS}],
    }


def _secret(receiver: Receiver) -> dict[str, str]:
    return {"name": receiver.secret_name, "key": PurePath(receiver.secret_file).name}


_IN_FILE: Mapping[str, Callable[[Receiver], dict[str, Any]]] = {
    "webhook": _webhook_in_file,
    "slack": _slack_in_file,
    "pagerduty": _pagerduty_in_file,
}
_IN_OBJECT: Mapping[str, Callable[[Receiver], dict[str, Any]]] = {
    "webhook": _webhook_in_object,
    "slack": _slack_in_object,
    "pagerduty": _pagerduty_in_object,
}
