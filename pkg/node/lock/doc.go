// Package lock owns mutual exclusion by name, among the goroutines of one
// process and among the processes of one node: during a rolling update two
// plugin pods work on the same GPUs and the same claims, and sync.Mutex ends at
// the border of a process.
//
// It never knows what a key stands for, never writes anything into a lock file, makes
// none after its start, and never decides for how long to wait: the caller's context does.
package lock
