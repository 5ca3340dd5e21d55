#!/bin/bash
# runc for a machine without CAP_SYS_RESOURCE: Docker before 23 gives a privileged container all capabilities that the
# kernel knows, and runc then ends with "unable to apply caps: operation not permitted".
for ((i = 1; i < $#; i++)); do
	value=$((i + 1))
	case ${!i} in
	--bundle) spec=${!value}/config.json ;;
	--process) spec=${!value} ;;
	*) continue ;;
	esac
	sed -i -e 's/,"CAP_SYS_RESOURCE"//g' -e 's/"CAP_SYS_RESOURCE",//g' "$spec"
done
exec /usr/sbin/runc "$@"
