#!/bin/sh
# Makes the password file from the secrets, then starts the broker in the foreground.
set -eu
file=/mosquitto/data/passwords
rm -f "$file"
touch "$file"
chmod 600 "$file"
mosquitto_passwd -b "$file" rigcanary-bridge "$(cat /run/secrets/mqtt_bridge)"
mosquitto_passwd -b "$file" rigs "$(cat /run/secrets/mqtt_rigs)"
chown -R mosquitto:mosquitto /mosquitto/data
exec mosquitto -c /mosquitto/config/mosquitto.conf
