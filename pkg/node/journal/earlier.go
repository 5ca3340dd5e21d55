package journal

import (
	"strings"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// complete adds what earlier builds, which knew three shapes, left to be concluded from
// the fields that a record had. Records that have a shape say what they mean.
func (d *Device) complete() {
	if d.Shape != "" {
		return
	}
	d.Shape, d.Type = gpu.BasePartition, "mig"
	switch {
	case d.Partition.Size == 0:
		d.Shape, d.Type = gpu.BaseWhole, "gpu"
	case d.Partition.Foreign && d.Partition.UUID != "":
		d.Shape = gpu.BaseStatic
	}
	if d.Shares > 0 {
		d.Sharing = (gpu.TimeSlicing{}).Name()
		if strings.HasSuffix(d.Device, "-"+(gpu.MPS{}).Name()) {
			d.Sharing = (gpu.MPS{}).Name()
		}
		d.Type = strings.TrimPrefix(d.Type+"-"+d.Sharing, "gpu-")
	}
	if !d.AdminAccess {
		d.Steps = d.stepsByShape()
	}
}

func (d *Device) stepsByShape() (steps []Step) {
	switch d.Shape {
	case gpu.BaseWhole:
		steps = append(steps, DisableMIG)
	case gpu.BasePartition:
		steps = append(steps, MakePartition)
	}
	if d.Interval != "" {
		steps = append(steps, SetTimeSlice)
	}
	if d.Served() && d.Shape == gpu.BaseWhole {
		steps = append(steps, SetComputeMode)
	}
	if d.Served() {
		steps = append(steps, RunDaemon)
	}
	return steps
}
