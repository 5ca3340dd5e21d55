# Runs a command's steps and tells of each: its number, its name and how long it took. Sourced by
# the scripts behind `make demo` and `make test`:
#
#   begin NAME TOTAL         names the command and says how many steps there will be
#   step NAME COMMAND...     runs one, with its output in the log
#   show NAME COMMAND...     runs one whose output is also for the reader
#
# A command that consists of several steps says so on its standard output: a line `::more N`
# announces N more of them, `::done NAME` ends one, and `::note TEXT` adds to what is said of the
# step, such as what was reused.
#
# On a terminal the step that runs has a live line with its time and the log's last line;
# elsewhere only what has ended is told, a line a step.
# shellcheck shell=bash

# begin NAME TOTAL
begin() {
	steps_name=$1 steps_total=$2 steps_number=0 steps_began=${SECONDS}
	steps_log=${PWD}/bin/logs/${steps_name}.log
	steps_clock=0 steps_pid=''
	mkdir -p "${steps_log%/*}"
	: >"${steps_log}"
	steps_live=false
	[[ -t 1 && ${CI:-} != true && ${TERM:-dumb} != dumb ]] && steps_live=true
	read -r _ steps_width < <(stty size 2>/dev/null || echo 0 0)
	((steps_width > 0)) || steps_width=80
	echo "make ${steps_name}: the log is ${steps_log#"${PWD}/"}"
	trap steps_interrupted INT TERM
}

# spent SECONDS prints a duration, such as 1m14s.
spent() {
	if (($1 >= 60)); then
		printf '%dm%02ds' $(($1 / 60)) $(($1 % 60))
	else
		printf '%ds' "$1"
	fi
}

# label NAME prints [7/16] and the name.
label() { printf '[%*d/%d] %s' "${#steps_total}" "${steps_number}" "${steps_total}" "$1"; }

# ended NAME [NOTE] tells that a step has ended.
ended() {
	[[ ${steps_live} == true ]] && printf '\r\033[K'
	printf '%s … %s%s\n' "$(label "$1")" "$(spent $((SECONDS - steps_clock)))" "${2:+ (${2})}"
}

# tick draws the live line anew.
tick() {
	[[ ${steps_live} == true ]] || return 0
	local line
	line="$(label "$1") … $(spent $((SECONDS - steps_clock)))  ${2//[^[:print:]]/}"
	printf '\r\033[K%s' "${line:0:steps_width - 1}"
}

# next_step starts the clock of the next step.
next_step() {
	steps_number=$((steps_number + 1))
	steps_clock=${SECONDS}
}

step() { follow false "$@"; }

show() { follow true "$@"; }

# follow SHOW NAME COMMAND... runs a step and reads its output.
follow() {
	local show=$1 name=$2 line='' part='' note='' last='' status='' status_of_read output
	shift 2
	next_step
	printf '\n== %s: %s\n' "${name}" "$*" >>"${steps_log}"
	local pipe=${steps_log%.log}.pipe
	rm -f "${pipe}" && mkfifo "${pipe}"
	# A process group of its own, so that all of it can be ended.
	set -m
	{
		set +e
		(
			set -e
			"$@"
		)
		echo "::exit $?"
	} >"${pipe}" 2>&1 </dev/null &
	steps_pid=$!
	set +m
	exec {output}<"${pipe}"
	rm -f "${pipe}"
	if [[ ${show} == true ]]; then echo "$(label "${name}") …"; else tick "${name}" ''; fi
	while true; do
		status_of_read=0
		IFS= read -r -t 1 -u "${output}" part || status_of_read=$?
		line+=${part}
		if ((status_of_read > 128)); then
			# A second is over. A line that has not ended yet is kept.
			[[ ${show} == true ]] || tick "${name}" "${last}"
			continue
		fi
		((status_of_read == 0)) || break
		case ${line} in
		'::more '*) steps_total=$((steps_total + ${line#::more })) ;;
		'::done '*)
			ended "${line#::done }" "${note}"
			note=''
			next_step
			;;
		'::note '*) note=${line#::note } ;;
		'::exit '*) status=${line#::exit } ;;
		*)
			printf '%s\n' "${line}" >>"${steps_log}"
			last=${line}
			if [[ ${show} == true ]]; then printf '%s\n' "${line}"; else tick "${name}" "${last}"; fi
			;;
		esac
		line=''
	done
	exec {output}<&-
	steps_pid=''
	[[ ${status} == 0 ]] || failed "${name}" "${show}"
	ended "${name}" "${note}"
}

# failed NAME SHOWN says why a step failed, unless its output was shown, and what to do, in the last
# lines; and ends the script.
failed() {
	[[ ${steps_live} == true ]] && printf '\r\033[K'
	local lines line reason=()
	mapfile -t lines < <(tail -n 400 "${steps_log}")
	for line in "${lines[@]}"; do
		# Neither what was fetched, nor what was compiled, nor an earlier step.
		case ${line} in
		'== '*) reason=() ;;
		'' | 'go: downloading '*) ;;
		*' '*) reason+=("${line}") ;;
		esac
	done
	{
		echo "$(label "$1") … failed after $(spent $((SECONDS - steps_clock)))"
		if [[ $2 == false ]]; then
			local count=${#reason[@]}
			((count == 0)) || printf '    %s\n' "${reason[@]:count > 15 ? count - 15 : 0}"
		fi
		echo
		# Tests talk of networks and kills that they made themselves.
		if [[ $2 == true ]]; then advice ''; else advice "${reason[*]}"; fi
	} >&2
	exit 1
}

# advice OUTPUT says what to do next, by what the output of the step that failed has.
advice() {
	local again="run \`make ${steps_name}\` again: what was built is kept"
	case $1 in
	*'no space left on device'*)
		echo "The disk is full. Free some space, or set GOCACHE, GOMODCACHE, MICA_CACHE and TMPDIR to directories with space; then ${again}."
		;;
	*'dial tcp'* | *'i/o timeout'* | *'no such host'* | *'proxyconnect'* | *'TLS handshake timeout'* | *'connection reset by peer'*'go.mod'*)
		echo "The network did not give what was asked of it. Check GOPROXY ($(go env GOPROXY)) and HTTPS_PROXY; then ${again}."
		;;
	*'signal: killed'* | *'cannot allocate memory'*)
		echo "A process was killed, most likely because memory ran out: a build needs 4 GiB. Close something; then ${again}."
		;;
	*)
		echo "The whole log is ${steps_log#"${PWD}/"}. When the reason is gone, ${again}."
		;;
	esac
}

steps_interrupted() {
	trap - INT TERM
	if [[ -n ${steps_pid} ]]; then
		kill -TERM -- "-${steps_pid}" 2>/dev/null || true
		wait "${steps_pid}" 2>/dev/null || true
	fi
	echo
	echo "Interrupted. Run \`make ${steps_name}\` again to go on: what was built is kept." >&2
	exit 130
}

# finished tells that all steps have ended.
finished() { echo "make ${steps_name}: done in $(spent $((SECONDS - steps_began)))"; }
