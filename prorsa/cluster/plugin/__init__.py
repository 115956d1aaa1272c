"""Prorsa inside an SGLang worker: events, load reports, warm flips and safe peers.

SGLang finds :func:`register` by the entry point group ``sglang.srt.plugins`` and calls it in each of a worker's
processes. Without ``PRORSA_HUB`` in the environment it does nothing. Nothing here ever raises into the scheduler.
``docs/plugin.md`` explains it. Needs msgspec and pyzmq alone.
"""


def register() -> None:
    """SGLang's entry point: hook into this process, or do nothing if the plugin is not configured.

    Raises:
        ConfigError: if the configuration is wrong; SGLang logs it and runs on without the plugin.
    """
    from prorsa.cluster.plugin.settings import Settings

    settings = Settings.from_environment()
    if settings is not None:
        from prorsa.cluster.plugin.worker import install

        install(settings)
