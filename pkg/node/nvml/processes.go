package nvml

// Processes are the IDs of those that compute on a GPU or one of its partitions, by the
// process IDs of the host. Clients of NVML are none of them.
func (l *Library) Processes(uuid string) (ids []uint32, err error) {
	err = l.on(uuid, func(d *device) error {
		running, ret := d.GetComputeRunningProcesses()
		for _, process := range running {
			ids = append(ids, process.Pid)
		}
		return check(ret, "list the processes", uuid)
	})
	return ids, err
}
