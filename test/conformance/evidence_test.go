//go:build !conformance

package conformance

import (
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// The table's first lines are those of nvidia-smi 580.95.05.
const claimed = `device /dev/nvidia-uvm
device /dev/nvidia3
device /dev/nvidiactl
GPU-6b1c7f0e-0000-0000-0000-000000000003, 580.95.05
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
module NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)
probed
`

const gpu3 = "GPU-6b1c7f0e-0000-0000-0000-000000000003"

func TestSight(t *testing.T) {
	t.Parallel()
	seen, complete := readSight("\n" + claimed)
	if !complete || seen.driver != "580.95.05" || seen.cuda != "13.0" || seen.module != "580.95.05" {
		t.Errorf("read %+v, complete %t", seen, complete)
	}
	if _, complete := readSight(strings.TrimSuffix(claimed, "probed\n")); complete {
		t.Error("a log without its last line is complete")
	}
	for _, test := range []struct {
		name, log string
		uuids     []string
		want      string
	}{
		{"its own GPU", claimed, []string{gpu3}, ""},
		{"nothing", "no nvidia-smi\nprobed\n", nil, ""},
		{"another GPU", claimed, []string{"GPU-0"}, "nvidia-smi lists"},
		{"one GPU of two", claimed, []string{gpu3, "GPU-0"}, "nvidia-smi lists"},
		{"a device node more", claimed + "device /dev/nvidia4\n", []string{gpu3}, "/dev/nvidia4"},
		{"a device node less", strings.Replace(claimed, "device /dev/nvidia3\n", "", 1), []string{gpu3}, "nvidia-smi lists"},
		{"a GPU without a claim", claimed, nil, "/dev/nvidia3"},
		{"a control device without a claim", "device /dev/nvidiactl\nno nvidia-smi\nprobed\n", nil, "/dev/nvidiactl"},
		{"a tool without a claim", "No devices were found\nprobed\n", nil, "nvidia-smi"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			seen, _ := readSight(test.log)
			switch err := seen.expect(test.uuids...); {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("the error is %v, want %s", err, test.want)
			}
		})
	}
}

func TestSameVersion(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		attribute, printed string
		want               bool
	}{
		{"580.95.5", "580.95.05", true},
		{"13.0.0", "13.0", true},
		{"580.95.5", "580.95.06", false},
		{"580.95.5", "", false},
		{"13.1.0", "13.0", false},
		{"580.95.5", "580.95.50", false},
		{"", "0", false},
		{"", "", false},
	} {
		if got := sameVersion(test.attribute, test.printed); got != test.want {
			t.Errorf("%q and %q: %t, want %t", test.attribute, test.printed, got, test.want)
		}
	}
}

func TestGPUsWithSeries(t *testing.T) {
	t.Parallel()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(`# TYPE mica_gpu_utilization_ratio gauge
mica_gpu_utilization_ratio{device="gpu-0",UUID="GPU-0"} 0
mica_gpu_utilization_ratio{device="gpu-1"} 0
`))
	if err != nil {
		t.Fatal(err)
	}
	if found := gpusWith(families, utilizationSeries); len(found) != 1 || !found["GPU-0"] {
		t.Errorf("found %v", found)
	}
	if found := gpusWith(families, memorySeries); len(found) != 0 {
		t.Errorf("found %v of a series that there is not", found)
	}
}

// A requirement that was tested in part is none that was passed.
func TestReport(t *testing.T) {
	t.Parallel()
	r := newReport()
	r.end("secure_accelerator_access", false)
	r.end("driver_runtime_management", true)
	r.skip("pod_autoscaling", "install an adapter")
	r.end("pod_autoscaling", false)
	var text strings.Builder
	r.write(&text)
	const want = `
secure_accelerator_access  MUST    passed
driver_runtime_management  SHOULD  FAILED
accelerator_metrics        MUST    not run
cluster_autoscaling        MUST    not run
pod_autoscaling            MUST    not tested
    install an adapter

1 of 5 requirements passed, 1 failed, 1 not tested, 2 not run
`
	if text.String() != want {
		t.Errorf("the report is\n%s\nwant\n%s", &text, want)
	}
}
