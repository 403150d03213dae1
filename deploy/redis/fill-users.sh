#!/bin/sh
# Fills users.acl in: prints it with the hashes of the passwords, as Redis reads it.
#
#   export PRODUCER_PASSWORD WORKER_PASSWORD GATEWAY_PASSWORD SCALER_PASSWORD OPERATOR_PASSWORD
#   ./fill-users.sh >/run/redis/users.acl
#
# NAME_PASSWORD_FILE may name a file that holds the password instead, such as a mounted secret. While a
# password is changed NAME_PASSWORD_OLD is the one before it: both let the user in. With ADMIN_PASSWORD
# there is an administrator, too.
# Needs sh, awk and sha256sum, as every Redis image has them. Passwords reach no command line.
set -eu

for user in PRODUCER WORKER GATEWAY SCALER OPERATOR ADMIN; do
  eval "password=\${${user}_PASSWORD:-} file=\${${user}_PASSWORD_FILE:-}"
  if [ -z "$password" ] && [ -n "$file" ]; then password=$(cat "$file"); fi
  if [ "$user$password" = ADMIN ]; then continue; fi
  if [ "${#password}" -lt 16 ]; then
    echo "fill-users.sh: ${user}_PASSWORD: give at least 16 characters, or ${user}_PASSWORD_FILE" >&2
    exit 2
  fi
  hash=$(printf %s "$password" | sha256sum)
  hashes=${hash%% *}
  eval "old=\${${user}_PASSWORD_OLD:-}"
  if [ -n "$old" ]; then
    hash=$(printf %s "$old" | sha256sum)
    hashes="$hashes #${hash%% *}"
  fi
  export "${user}_SHA256=$hashes"
done

awk '
  /^#/ || /^$/ { next }
  /^user/ { if (user) print user; user = "" }
  { sub(/^ +/, " "); user = user $0 }
  match(user, /#[A-Z]+_SHA256/) {
    name = substr(user, RSTART + 1, RLENGTH - 1)
    user = name in ENVIRON ? substr(user, 1, RSTART) ENVIRON[name] substr(user, RSTART + RLENGTH) : ""
  }
  END { print user }
' "$(dirname "$0")/users.acl"
