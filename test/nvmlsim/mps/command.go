package mps

import (
	"errors"
	"fmt"
	"os"
	"slices"
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

var commands = map[string]command{
	"get_server_list":                      {"", 0, 0, (*Daemon).serverList},
	"get_server_status":                    {"PID", 1, 1, (*Daemon).serverStatus},
	"start_server":                         {"-uid UID", 2, 2, (*Daemon).startServer},
	"shutdown_server":                      {"PID [-f]", 1, 2, (*Daemon).shutdownServer},
	"get_client_list":                      {"PID", 1, 1, (*Daemon).clientList},
	"get_device_client_list":               {"[PID]", 0, 1, (*Daemon).deviceClientList},
	"terminate_client":                     {"SERVER_PID CLIENT_PID", 2, 2, (*Daemon).terminateClient},
	"ps":                                   {"[-p PID]", 0, 2, (*Daemon).ps},
	"set_default_active_thread_percentage": {"PERCENTAGE", 1, 1, (*Daemon).setDefaultPercentage},
	"get_default_active_thread_percentage": {"", 0, 0, (*Daemon).defaultPercentage},
	"set_active_thread_percentage":         {"PID PERCENTAGE", 2, 2, (*Daemon).setPercentage},
	"get_active_thread_percentage":         {"PID", 1, 1, (*Daemon).percentage},
	"set_default_device_pinned_mem_limit":  {"DEVICE SIZE", 2, 2, (*Daemon).setDefaultMemory},
	"get_default_device_pinned_mem_limit":  {"DEVICE", 1, 1, (*Daemon).defaultMemory},
	"set_device_pinned_mem_limit":          {"PID DEVICE SIZE", 3, 3, (*Daemon).setMemory},
	"get_device_pinned_mem_limit":          {"PID DEVICE", 2, 2, (*Daemon).memory},
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
	if words[0] == "help" {
		return help(), nil
	}
	known, found := commands[words[0]]
	arguments := words[1:]
	switch {
	case !found:
		return "", fmt.Errorf("unknown command: %s; help lists those that there are", words[0])
	case len(arguments) < known.least || len(arguments) > known.most:
		return "", fmt.Errorf("usage: %s %s", words[0], known.usage)
	}
	output, err := known.run(d, arguments)
	if errors.Is(err, errUsage) {
		err = fmt.Errorf("usage: %s %s", words[0], known.usage)
	}
	return output, err
}

func help() string {
	var lines []string
	for name, known := range commands {
		lines = append(lines, strings.TrimSpace(name+" "+known.usage)+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// find finds the server by what is said of its process ID.
func (d *Daemon) find(pid string) (*server, error) {
	if d.server == nil || strconv.Itoa(d.server.pid) != pid {
		return nil, fmt.Errorf("there is no MPS server with process ID %s", pid)
	}
	return d.server, nil
}

func (d *Daemon) serverList([]string) (string, error) {
	if d.server == nil {
		return "", nil
	}
	return fmt.Sprintln(d.server.pid), nil
}

func (d *Daemon) serverStatus(arguments []string) (string, error) {
	s, err := d.find(arguments[0])
	if err != nil {
		return "", err
	}
	return s.status() + "\n", nil
}

func (d *Daemon) startServer(arguments []string) (string, error) {
	uid, err := strconv.ParseUint(arguments[1], 10, 32)
	switch {
	case err != nil || arguments[0] != "-uid":
		return "", errUsage
	case d.server != nil:
		return "", fmt.Errorf("MPS server %d of user %d runs already", d.server.pid, d.server.uid)
	case os.Geteuid() != 0 && int(uid) != os.Geteuid():
		return "", fmt.Errorf("a server of user %d can be started by root alone", uid)
	}
	if err := d.start(uint32(uid)); err != nil {
		return "", err
	}
	s := d.server
	d.unlocked(func() { <-s.started })
	if s.failure != "" {
		return "", fmt.Errorf("the MPS server failed to start: %s", s.failure)
	}
	return "", nil
}

// unlocked lets others go on while it waits.
func (d *Daemon) unlocked(wait func()) {
	d.mu.Unlock()
	defer d.mu.Lock()
	wait()
}

func (d *Daemon) shutdownServer(arguments []string) (string, error) {
	s, err := d.find(arguments[0])
	if err != nil {
		return "", err
	}
	if len(arguments) == 2 && arguments[1] != "-f" {
		return "", errUsage
	}
	s.draining = true
	if len(arguments) == 2 {
		d.disconnectAll(s)
	}
	if len(s.clients) == 0 {
		d.end(s)
	}
	return "", nil
}

func (d *Daemon) clientList(arguments []string) (string, error) {
	s, err := d.find(arguments[0])
	if err != nil {
		return "", err
	}
	var list strings.Builder
	for _, c := range s.clientsInOrder() {
		fmt.Fprintln(&list, c.pid)
	}
	return list.String(), nil
}

func (d *Daemon) deviceClientList(arguments []string) (string, error) {
	if len(arguments) == 1 {
		if _, err := d.find(arguments[0]); err != nil {
			return "", err
		}
	}
	var list strings.Builder
	if d.server == nil {
		return "", nil
	}
	for number, device := range d.server.Devices {
		fmt.Fprintf(&list, "Device %d %s:", number, device.UUID)
		for _, c := range d.server.clientsInOrder() {
			if slices.ContainsFunc(c.devices, func(of clientDevice) bool { return of.number == number }) {
				fmt.Fprintf(&list, " %d", c.pid)
			}
		}
		fmt.Fprintln(&list)
	}
	return list.String(), nil
}

func (d *Daemon) terminateClient(arguments []string) (string, error) {
	s, err := d.find(arguments[0])
	if err != nil {
		return "", err
	}
	for _, c := range s.clientsInOrder() {
		if strconv.Itoa(c.pid) == arguments[1] {
			_ = c.send(Reply{Error: "CUDA_ERROR_MPS_CLIENT_TERMINATED: the control daemon ended the client"})
			d.detach(c)
			c.conn.Close()
			return "", nil
		}
	}
	return "", fmt.Errorf("MPS server %d has no client with process ID %s", s.pid, arguments[1])
}

func (d *Daemon) ps(arguments []string) (string, error) {
	if len(arguments) == 1 || len(arguments) == 2 && arguments[0] != "-p" {
		return "", errUsage
	}
	var list strings.Builder
	fmt.Fprintf(&list, "%-8s%-6s%-9s%-19s%-13s%s\n", "PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")
	if d.server == nil {
		return list.String(), nil
	}
	id := 0
	for _, c := range d.server.clientsInOrder() {
		if len(arguments) == 2 && strconv.Itoa(c.pid) != arguments[1] {
			continue
		}
		for _, of := range c.devices {
			uuid := d.server.Devices[of.number].UUID
			fmt.Fprintf(&list, "%-8d%-6d%-9d%-19s%-13s%s\n", c.pid, id, d.server.pid,
				uuid[:min(len(uuid), len("GPU-cb1213a3-d6a4"))], namespaceOf(c.pid), commandOf(c.pid))
			id++
		}
	}
	return list.String(), nil
}

// namespaceOf and commandOf say nothing of a process that is not seen from here.
func namespaceOf(pid int) string {
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return "-"
	}
	return strings.Trim(strings.TrimPrefix(link, "pid:"), "[]")
}

func commandOf(pid int) string {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return "-"
	}
	program, _, _ := strings.Cut(string(raw), "\x00")
	return program
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

func (d *Daemon) setPercentage(arguments []string) (string, error) {
	s, err := d.find(arguments[0])
	if err != nil {
		return "", err
	}
	p, err := parsePercentage(arguments[1])
	if err != nil {
		return "", err
	}
	s.limits.percentage = p
	return printPercentage(p) + "\n", nil
}

func (d *Daemon) percentage(arguments []string) (string, error) {
	s, err := d.find(arguments[0])
	if err != nil {
		return "", err
	}
	return printPercentage(s.limits.percentage) + "\n", nil
}

func (l limits) set(device, size string) error {
	bytes, err := parseMemory(size)
	if err == nil {
		l.memory[device] = bytes
	}
	return err
}

func (l limits) print(device string) (string, error) {
	bytes, found := l.memory[device]
	if !found {
		return "", fmt.Errorf("device %s has no pinned memory limit", device)
	}
	return printMemory(bytes) + "\n", nil
}

func (d *Daemon) setDefaultMemory(arguments []string) (string, error) {
	return "", d.defaults.set(arguments[0], arguments[1])
}

func (d *Daemon) defaultMemory(arguments []string) (string, error) {
	return d.defaults.print(arguments[0])
}

func (d *Daemon) setMemory(arguments []string) (string, error) {
	s, err := d.find(arguments[0])
	if err != nil {
		return "", err
	}
	return "", s.limits.set(arguments[1], arguments[2])
}

func (d *Daemon) memory(arguments []string) (string, error) {
	s, err := d.find(arguments[0])
	if err != nil {
		return "", err
	}
	return s.limits.print(arguments[1])
}

// quit ends the daemon once its clients have gone or the time is over, whichever is
// first. Nobody becomes a client meanwhile.
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
