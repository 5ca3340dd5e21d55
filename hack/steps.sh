# Runs a command's steps and reports how long each took. Sourced by the scripts behind `make demo` and
# `make test`:
#
#   begin NAME             names the make target; all output is also in bin/logs/NAME.log
#   step NAME COMMAND...   runs a command; its last lines are shown if it fails
#   show NAME COMMAND...   runs a command whose output the reader wants to see
#   finished               ends the last step
#
# shellcheck shell=bash

begin() {
	steps_name=$1 steps_log=${PWD}/bin/logs/$1.log steps_began=${SECONDS} steps_pid=''
	mkdir -p "${steps_log%/*}"
	: >"${steps_log}"
	echo "make $1: the log is bin/logs/$1.log"
	trap 'kill -TERM -- "-${steps_pid}" 2>/dev/null; exit 130' INT TERM
}

step() { follow false "$@"; }
show() {
	echo "$1 …"
	follow true "$@"
}

# record SHOW adds its input to the log, and shows it or not.
record() { if [[ $1 == true ]]; then tee -a "${steps_log}"; else cat >>"${steps_log}"; fi; }

# follow SHOW NAME COMMAND... runs a step in a process group of its own, so that all of it can be ended.
follow() {
	local show=$1 name=$2 began=${SECONDS} from
	shift 2
	printf '\n== %s: %s\n' "${name}" "$*" >>"${steps_log}"
	from=$(wc -l <"${steps_log}")
	set -m
	(
		set -o pipefail
		(
			set -e
			"$@"
		) 2>&1 | record "${show}"
	) </dev/null &
	steps_pid=$!
	set +m
	if wait "${steps_pid}"; then
		echo "${name} … $((SECONDS - began))s"
		return
	fi
	{
		echo "${name} … failed after $((SECONDS - began))s"
		[[ ${show} == true ]] || tail -n "+$((from + 1))" "${steps_log}" | grep -v '^go: downloading ' | tail -n 15 | sed 's/^/    /' || true
		echo
		echo "The whole log is bin/logs/${steps_name}.log. When the reason is gone, run \`make ${steps_name}\` again: what was built is kept."
	} >&2
	exit 1
}

finished() { echo "make ${steps_name}: done in $((SECONDS - steps_began))s"; }
