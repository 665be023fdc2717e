"""The embedded MQTT broker as a process of its own: ``python -m onebox.mqtt_process CONFIG``."""

import logging
import sys

from iotcore import IotCoreBroker


def _main() -> None:
    # rumqttd wraps its routing in error spans: through Python's logging every packet would
    # come out as an ERROR record.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("rumqttd").setLevel(logging.CRITICAL)
    IotCoreBroker(config_path=sys.argv[1]).run_forever()


if __name__ == "__main__":
    _main()
