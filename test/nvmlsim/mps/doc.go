// Package mps owns the stand-in for CUDA's Multi-Process Service: the control daemon,
// its front end and its server, which are one program under two names. It speaks to
// the simulated driver as a process that computes does, and runs nothing itself. It
// needs no C library, so that it runs in any container.
//
// # Protocol
//
// The real daemon's protocol is not published; this one is the simulator's own. The
// socket `control` in the pipe directory takes lines of JSON, each answered by one.
// A front end sends commands:
//
//	{"command":"get_server_list"}                    {"output":"4711\n"}
//
// A client of CUDA connects with what its environment says, and is answered once a
// server takes it, however long that is. It then asks for memory:
//
//	{"connect":{"visibleDevices":"0","memoryLimit":"0=512M","threadPercentage":"25"}}
//	{"connected":{"server":4712,"sharedMemory":"/dev/shm/cuda.shm.0.1268.1","token":"…",
//	              "threadPercentage":25,"devices":[{"uuid":"GPU-…","memoryLimitBytes":536870912}]}}
//	{"allocate":{"device":0,"bytes":1048576}}        {"allocated":true}
//	{"allocate":{"device":0,"bytes":536870912}}      {"error":"CUDA_ERROR_OUT_OF_MEMORY: …"}
//
// A client must find the token in the file of shared memory, as real clients must
// have the server's /dev/shm. It is a client as long as the connection lasts.
package mps

// Request is one line to the daemon: exactly one field is set.
type Request struct {
	Command  *string   `json:"command,omitempty"`
	Connect  *Connect  `json:"connect,omitempty"`
	Allocate *Allocate `json:"allocate,omitempty"`
}

// Connect makes the connection that of a client. Its fields are what the variables
// CUDA_VISIBLE_DEVICES, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT and
// CUDA_MPS_ACTIVE_THREAD_PERCENTAGE say, empty for one that is not set.
type Connect struct {
	VisibleDevices   string `json:"visibleDevices,omitempty"`
	MemoryLimit      string `json:"memoryLimit,omitempty"`
	ThreadPercentage string `json:"threadPercentage,omitempty"`
}

// Allocate asks for memory of one of the client's devices.
type Allocate struct {
	Device int    `json:"device"`
	Bytes  uint64 `json:"bytes"`
}

// Reply answers a Request.
type Reply struct {
	// Error begins with the name of a CUDA error.
	Error     string     `json:"error,omitempty"`
	Output    string     `json:"output,omitempty"`
	Connected *Connected `json:"connected,omitempty"`
	Allocated bool       `json:"allocated,omitempty"`
}

// Connected is what a client gets.
type Connected struct {
	// Server is the server's process ID.
	Server int `json:"server"`
	// SharedMemory is a file that holds Token.
	SharedMemory     string         `json:"sharedMemory"`
	Token            string         `json:"token"`
	ThreadPercentage float64        `json:"threadPercentage"`
	Devices          []ClientDevice `json:"devices"`
}

// ClientDevice is a device as one client has it.
type ClientDevice struct {
	UUID             string `json:"uuid"`
	MemoryLimitBytes uint64 `json:"memoryLimitBytes"`
}
