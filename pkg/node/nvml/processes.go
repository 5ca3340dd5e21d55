package nvml

// Processes lists the processes that compute on a GPU or one of its partitions, by the host's process
// IDs, without clients of NVML.
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
