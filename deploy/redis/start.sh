#!/bin/sh
# Starts the Redis of docker-compose.yml with two users. Only hashes of their passwords are in a file, and none of them
# is in the process list: printf and the variables belong to the shell.
#
#   REDISCLI_AUTH          password of `roundhouse`, which has only the rights that the router needs; redis-cli reads
#                          the variable too
#   REDIS_ADMIN_PASSWORD   password of `default`, which has all rights; if empty, nobody can log in as that user
#   REDIS_MAXMEMORY        the memory limit

set -eu
umask 077

hash_of() {
    printf %s "$1" | sha256sum | cut -c1-64
}

case "$REDISCLI_AUTH" in
    "" | *[!A-Za-z0-9._~-]*)
        echo "REDIS_PASSWORD: it is part of a URL, so use only letters, digits and . _ ~ -" >&2
        exit 1
        ;;
esac

# As in docs/deploying.md; a test compares them.
rights='resetchannels ~rh:1:* &rh:1:* -@all +hello +ping +client|setname +client|tracking +role +info +cluster|slots +asking +exists +get +set +del +expire +pexpire +time +hget +hgetall +hset +hdel +hincrby +eval +lpush +ltrim +lrange +xadd +xrange +xrevrange +zincrby +zremrangebyrank +publish +subscribe +scan +type +pttl +memory|usage +hmget +unlink +zrevrange +zscore +zrem +wait +command +client|setinfo'

{
    echo "user roundhouse on #$(hash_of "$REDISCLI_AUTH") $rights"
    if [ -n "${REDIS_ADMIN_PASSWORD:-}" ]; then
        echo "user default on #$(hash_of "$REDIS_ADMIN_PASSWORD") ~* &* +@all"
    else
        # It is off, and has no password: nobody logs in as it. It has all rights, because Redis loads the append-only
        # file as this user: without them, it refuses transactions in the file and starts without their data.
        echo "user default off ~* &* +@all"
    fi
} > /tmp/users.acl

unset REDISCLI_AUTH REDIS_ADMIN_PASSWORD
exec redis-server /etc/redis/redis.conf --maxmemory "${REDIS_MAXMEMORY:-2gb}"
