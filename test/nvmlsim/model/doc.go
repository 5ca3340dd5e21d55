// Package model owns the simulated machine: its GPUs, their state, and what
// NVML answers about them. A Machine is the driver and the hardware; a Session
// is one client of it and implements go-nvml's nvml.Interface in process. It
// never touches a real device, a socket or a file system: the C library, the
// daemon and the driver root are built on top of it.
//
// Return codes follow the documentation in the NVML header. A function that is not in
// Functions is not modelled: through the C library it answers NOT_SUPPORTED, as a driver does
// on a board without the feature; in process it panics.
package model
