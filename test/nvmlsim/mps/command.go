package mps

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// command is one that the front end knows. It is called with Daemon.mu held and
// returns what the front end prints.
type command struct {
	usage string
	// arguments it takes at least and at most.
	least, most int
	run         func(*Daemon, []string) (string, error)
}

// errUsage says that the arguments are not those of the command.
var errUsage = errors.New("usage")

// commands are those that Mica's supervisor gives, and get_server_list, which docs/use/mps.md has.
var commands = map[string]command{
	"get_server_list":                      {"", 0, 0, (*Daemon).serverList},
	"set_default_active_thread_percentage": {"PERCENTAGE", 1, 1, (*Daemon).setDefaultPercentage},
	"get_default_active_thread_percentage": {"", 0, 0, (*Daemon).defaultPercentage},
	"set_default_device_pinned_mem_limit":  {"DEVICE SIZE", 2, 2, (*Daemon).setDefaultMemory},
	"quit":                                 {"[-t SECONDS]", 0, 2, (*Daemon).quit},
}

// answerFrontEnd carries a command out. Only root and the daemon's user may.
func (d *Daemon) answerFrontEnd(c *client, line string) Reply {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !c.frontEnd {
		c.frontEnd = true
		d.say("NEW UI")
	}
	d.say("Cmd:%s", line)
	if c.uid != 0 && int(c.uid) != os.Geteuid() {
		d.say("User did not send valid credentials")
		return Reply{Output: "Permission denied\n"}
	}
	output, err := d.carryOut(strings.Fields(line))
	if err != nil {
		output = err.Error() + "\n"
	}
	if output != "" {
		d.say("%s", strings.TrimSpace(output))
	}
	return Reply{Output: output}
}

func (d *Daemon) carryOut(words []string) (string, error) {
	if len(words) == 0 {
		return "", nil
	}
	known, found := commands[words[0]]
	arguments := words[1:]
	switch {
	case !found:
		return "", fmt.Errorf("unknown command: %s", words[0])
	case len(arguments) < known.least || len(arguments) > known.most:
		return "", fmt.Errorf("usage: %s %s", words[0], known.usage)
	}
	output, err := known.run(d, arguments)
	if errors.Is(err, errUsage) {
		err = fmt.Errorf("usage: %s %s", words[0], known.usage)
	}
	return output, err
}

func (d *Daemon) serverList([]string) (string, error) {
	if d.server == nil {
		return "", nil
	}
	return fmt.Sprintln(d.server.pid), nil
}

// unlocked lets others go on while it waits.
func (d *Daemon) unlocked(wait func()) {
	d.mu.Unlock()
	defer d.mu.Lock()
	wait()
}

func (d *Daemon) setDefaultPercentage(arguments []string) (string, error) {
	p, err := parsePercentage(arguments[0])
	if err != nil {
		return "", err
	}
	d.defaults.percentage = p
	return printPercentage(p) + "\n", nil
}

func (d *Daemon) defaultPercentage([]string) (string, error) {
	return printPercentage(d.defaults.percentage) + "\n", nil
}

func (d *Daemon) setDefaultMemory(arguments []string) (string, error) {
	bytes, err := parseMemory(arguments[1])
	if err == nil {
		d.defaults.memory[arguments[0]] = bytes
	}
	return "", err
}

// quit ends the daemon once its clients have gone or the time is over, whichever is
// first. No client is accepted meanwhile.
func (d *Daemon) quit(arguments []string) (string, error) {
	var timeout <-chan time.Time
	switch {
	case len(arguments) == 1 || len(arguments) == 2 && arguments[0] != "-t":
		return "", errUsage
	case len(arguments) == 2:
		seconds, err := strconv.ParseUint(arguments[1], 10, 31)
		if err != nil {
			return "", fmt.Errorf("%q is not a number of seconds", arguments[1])
		}
		timeout = time.After(time.Duration(seconds) * time.Second)
	}
	d.quitting = true
	if s := d.server; s != nil {
		d.rejectWaiting("CUDA_ERROR_MPS_CONNECTION_FAILED: the control daemon ends")
		s.draining = true
		if len(s.clients) == 0 {
			d.end(s)
		}
		d.unlocked(func() {
			select {
			case <-s.exited:
			case <-timeout:
			}
		})
	}
	d.unlocked(d.Stop)
	return "", nil
}
