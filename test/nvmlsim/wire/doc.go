// Package wire owns the protocol between the NVML shim and the simulator's
// daemon: which C functions travel and how their arguments do, and the server
// that dispatches them onto an nvml.Interface. It never knows what a GPU is:
// every answer comes from the session it was given.
//
// # Format
//
// A connection carries frames in both directions: a 32-bit length in the
// machine's byte order (both ends are on one machine) and as many bytes, at
// most [MaxFrame]. The first frame introduces the client, see [hello]; it is
// answered with a 32-bit NVML return code. Each frame after that is a call:
//
//	u8 length and name of the C function, u8 number of arguments
//	for each argument: u8 kind, then
//	  Handle, U64: u64
//	  U32:         u32
//	  String:      u8 present, and if so u32 length and the bytes
//	  In, InOut, Versioned, Tailed: u8 present, and if so u32 size and the bytes
//	  Out:         u8 present, and if so u32 size
//
// and its answer:
//
//	u32 NVML return code
//	for each Out, InOut, Versioned and Tailed argument that was present:
//	  u32 size, at most the caller's, and the bytes to write there
//
// A function that is not in [Functions] travels by its name, with a device if
// its first argument is one, and is answered with a return code alone.
//
// An argument's pointer that is NULL is not present. Everything a frame says
// is held against the function's signature in [Functions] before it is used.
package wire
