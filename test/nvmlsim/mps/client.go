package mps

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/mica-gpu/mica/test/nvmlsim/process"
)

// client is a connection to the daemon. Daemon.mu guards all but the first fields.
type client struct {
	conn *net.UnixConn
	pid  int
	uid  uint32
	// writing keeps an answer and the news of an end apart.
	writing sync.Mutex

	frontEnd bool
	// gone is set when the peer is, whatever of its requests are left.
	gone    bool
	wants   limits
	visible string
	// admitted is closed when server or refusal is set.
	admitted chan struct{}
	server   *server
	refusal  string
	devices  []clientDevice
}

// clientDevice is a device as a client has it.
type clientDevice struct {
	// number is the server's.
	number      int
	limit, used uint64
}

func (c *client) send(reply Reply) error {
	raw, err := json.Marshal(reply)
	if err != nil {
		return err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	_, err = c.conn.Write(append(raw, '\n'))
	return err
}

// connect waits until a server takes the client.
func (d *Daemon) connect(c *client, wants Connect) Reply {
	own, err := parseLimits(wants.MemoryLimit, wants.ThreadPercentage)
	if err != nil {
		return Reply{Error: "CUDA_ERROR_INVALID_VALUE: " + err.Error()}
	}
	d.mu.Lock()
	if c.gone || c.wants.memory != nil {
		d.mu.Unlock()
		return Reply{Error: "CUDA_ERROR_INVALID_VALUE: the connection is a client's already"}
	}
	c.wants, c.visible = own, wants.VisibleDevices
	if d.stopping || d.quitting {
		d.mu.Unlock()
		return Reply{Error: "CUDA_ERROR_MPS_CONNECTION_FAILED: the control daemon ends"}
	}
	d.waiting = append(d.waiting, c)
	d.advance()
	if slices.Contains(d.waiting, c) {
		d.say("NEW CLIENT %d from user %d: Server is not ready, push client to pending list", c.pid, c.uid)
	}
	d.mu.Unlock()
	<-c.admitted
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.server == nil {
		return Reply{Error: c.refusal}
	}
	connected := &Connected{
		Server: c.server.pid, SharedMemory: c.server.SharedMemory, Token: c.server.Token,
		ThreadPercentage: min(c.wants.percentage, c.server.limits.percentage),
	}
	for _, of := range c.devices {
		connected.Devices = append(connected.Devices, ClientDevice{UUID: c.server.Devices[of.number].UUID, MemoryLimitBytes: of.limit})
	}
	return Reply{Connected: connected}
}

// advance takes the client that waits longest, if a server can, and those after it.
// Users take turns: a server of another user ends with its last client. It is called
// with Daemon.mu held.
func (d *Daemon) advance() {
	for len(d.waiting) > 0 && !d.stopping {
		head := d.waiting[0]
		uid := head.uid
		if d.options.MultiUser {
			uid = uint32(os.Geteuid())
		}
		switch {
		case os.Geteuid() != 0 && uid != uint32(os.Geteuid()):
			d.reject(head, "CUDA_ERROR_MPS_CONNECTION_FAILED: the control daemon is another user's")
			continue
		case d.server == nil:
			if err := d.start(uid); err != nil {
				d.say("Failed to start server: %v", err)
				d.rejectWaiting("CUDA_ERROR_MPS_SERVER_NOT_READY: " + err.Error())
			}
			return
		case !d.server.ready || d.server.draining && len(d.server.clients) > 0:
			return
		case d.server.draining || d.server.uid != uid && len(d.server.clients) == 0:
			d.end(d.server)
			return
		case d.server.uid != uid:
			return
		}
		d.admit(head)
	}
}

func (d *Daemon) admit(c *client) {
	s := d.server
	c.devices = s.devicesOf(c)
	if len(c.devices) == 0 {
		d.reject(c, fmt.Sprintf("CUDA_ERROR_NO_DEVICE: the server has none of the devices %q", c.visible))
		return
	}
	d.unqueue(c)
	c.server = s
	s.clients[c] = struct{}{}
	d.say("NEW CLIENT %d from user %d: Server already exists", c.pid, c.uid)
	d.serverLog.say("Server", s.pid, "New client %d connected", c.pid)
	close(c.admitted)
}

// devicesOf are those that the client sees, numbered as the client numbers them, as
// CUDA_VISIBLE_DEVICES says: on numbers of the server, or the first characters of UUIDs.
func (s *server) devicesOf(c *client) []clientDevice {
	var devices []clientDevice
	add := func(number int) {
		limit := s.Devices[number].MemoryBytes
		if bytes, limited := s.limits.of(number, s.Devices[number].UUID); limited {
			limit = min(limit, bytes)
		}
		if bytes, limited := c.wants.of(len(devices), s.Devices[number].UUID); limited {
			limit = min(limit, bytes)
		}
		devices = append(devices, clientDevice{number: number, limit: limit})
	}
	if c.visible == "" {
		for number := range s.Devices {
			add(number)
		}
		return devices
	}
	for _, entry := range strings.Split(c.visible, ",") {
		number, err := strconv.Atoi(entry)
		if err != nil {
			number = slices.IndexFunc(s.announcement.Devices, func(d process.Device) bool {
				return len(entry) > len("GPU-") && strings.HasPrefix(d.UUID, entry)
			})
		}
		if number < 0 || number >= len(s.Devices) {
			break
		}
		add(number)
	}
	return devices
}

func (d *Daemon) allocate(c *client, a Allocate) Reply {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.server == nil {
		return Reply{Error: "CUDA_ERROR_NOT_INITIALIZED: the connection is no client's"}
	}
	if a.Device < 0 || a.Device >= len(c.devices) {
		return Reply{Error: fmt.Sprintf("CUDA_ERROR_INVALID_DEVICE: the client has %d devices", len(c.devices))}
	}
	of := &c.devices[a.Device]
	all := &c.server.used[of.number]
	switch {
	case a.Bytes > of.limit-of.used:
		return Reply{Error: fmt.Sprintf("CUDA_ERROR_OUT_OF_MEMORY: the client has %d bytes left of its limit of %d", of.limit-of.used, of.limit)}
	case a.Bytes > c.server.Devices[of.number].MemoryBytes-*all:
		return Reply{Error: fmt.Sprintf("CUDA_ERROR_OUT_OF_MEMORY: the device has %d bytes left", c.server.Devices[of.number].MemoryBytes-*all)}
	}
	of.used += a.Bytes
	*all += a.Bytes
	return Reply{Allocated: true}
}

// leave forgets a connection.
func (d *Daemon) leave(c *client) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.frontEnd {
		d.say("UI closed")
	}
	c.gone = true
	if slices.Contains(d.waiting, c) {
		d.reject(c, "CUDA_ERROR_MPS_CLIENT_TERMINATED: the client went while it waited")
	}
	d.detach(c)
	d.advance()
}

// detach takes the client and its memory from its server.
func (d *Daemon) detach(c *client) {
	s := c.server
	if s == nil {
		return
	}
	if _, connected := s.clients[c]; !connected {
		return
	}
	delete(s.clients, c)
	for _, of := range c.devices {
		s.used[of.number] -= of.used
	}
	d.serverLog.say("Server", s.pid, "Client %d disconnected", c.pid)
	if s.draining && len(s.clients) == 0 {
		d.end(s)
	}
}

func (d *Daemon) unqueue(c *client) {
	d.waiting = slices.DeleteFunc(d.waiting, func(other *client) bool { return other == c })
}

func (d *Daemon) reject(c *client, why string) {
	d.unqueue(c)
	c.refusal = why
	close(c.admitted)
}

func (d *Daemon) rejectWaiting(why string) {
	for _, c := range slices.Clone(d.waiting) {
		d.reject(c, why)
	}
}

// clientsInOrder are a server's, by process ID.
func (s *server) clientsInOrder() []*client {
	return slices.SortedFunc(maps.Keys(s.clients), func(a, b *client) int { return a.pid - b.pid })
}
