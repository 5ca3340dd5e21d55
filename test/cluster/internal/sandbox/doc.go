// Package sandbox owns the walls of a cluster: its process ID, mount and
// network namespaces, its cgroup, and the removal of all of them. When the
// namespace's init dies, the kernel kills every process in it and takes its
// mounts, interfaces and addresses away. It knows nothing of Kubernetes.
package sandbox
