#!/bin/sh
# Starts Redis with one user, whose password comes from the environment. Redis gets its hash only.
set -eu
users="${USERS_FILE:-/tmp/users.acl}"
hash=$(printf %s "$REDIS_PASSWORD" | sha256sum | cut -d ' ' -f 1)
umask 077
# `default` is off, and has no password: nobody logs in as it. It has all rights, because Redis loads the append-only file
# as this user: without them, it refuses transactions in the file and starts without their data.
cat > "$users" <<END
user default off ~* &* +@all
user roundhouse on #$hash resetchannels ~rh:1:* &rh:1:* -@all +hello +ping +client|setname +client|tracking +role +info +cluster|slots +asking +exists +get +set +del +expire +pexpire +time +hget +hgetall +hset +hdel +hincrby +eval +lpush +ltrim +lrange +xadd +xrange +xrevrange +zincrby +zremrangebyrank +publish +subscribe +scan +type +pttl +memory|usage +hmget +unlink +zrevrange +zscore +zrem +wait +command +client|setinfo
END
exec redis-server "${REDIS_CONF:-/etc/redis/redis.conf}" --aclfile "$users" "$@"
