package crash_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/test/fixture"
)

// wholeSlicedAndDivided makes 27 devices of an H100.
var wholeSlicedAndDivided = &v1alpha1.GPUPolicy{
	TypeMeta:   metav1.TypeMeta{APIVersion: "mica.gpu/v1alpha1", Kind: "GPUPolicy"},
	ObjectMeta: metav1.ObjectMeta{Name: "whole-sliced-and-divided", UID: "uid-policy", Generation: 1},
	Spec: v1alpha1.GPUPolicySpec{Shapes: v1alpha1.Shapes{
		Whole: &v1alpha1.Whole{}, TimeSlice: &v1alpha1.TimeSlice{Replicas: 4}, MIG: &v1alpha1.MIG{},
	}},
}

// BenchmarkMemory measures a plugin as a node has it: it offers eight H100s as 216 devices, has
// published them, prepares and unprepares a claim on each again and again and serves its metrics. The working set is what
// kubelet reports and evicts pods by: all memory of the process's control group, with the
// pages of its binary and what the kernel has for it, without files that were not used lately.
func BenchmarkMemory(b *testing.B) {
	n := newNode(b, wholeSlicedAndDivided)
	n.keepSlices()
	group, err := newGroup(b)
	if err != nil {
		b.Logf("The working set is not measured: %v", err)
	} else {
		n.starter = group.starter()
		n.must(forget(filepath.Join(binaries, "kubelet-plugin")))
	}
	p := n.start("--pod-uid=p", "--healthcheck-port=0", "--metrics-port=0")
	fixture.Eventually(b, "the devices are published", func() error {
		if !strings.Contains(p.log.String(), `"Devices are published" devices=216`) {
			return errors.New("they are not")
		}
		return nil
	})
	var whole []*resourceapi.ResourceClaim
	for i := range 8 {
		whole = append(whole, n.put(fmt.Sprint("whole", i), fmt.Sprint("gpu-", i)))
	}
	var anonymous, files, workingSet []float64
	for b.Loop() {
		n.prepareAll(p, whole)
		n.scrape(p)
		anonymous, files = append(anonymous, n.resident(p, "RssAnon")), append(files, n.resident(p, "RssFile"))
		if err == nil {
			workingSet = append(workingSet, group.workingSet())
		}
		n.unprepareAll(p, whole)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(files), "file-MB")
	reportAtMost(b, "anonymous-MB", median(anonymous), 15)
	if err == nil {
		reportAtMost(b, "working-set-MB", median(workingSet), 30)
	}
}

var metricsAddress = regexp.MustCompile(`Serving metrics" address="[^"]*:([0-9]+)"`)

// scrape reads the plugin's metrics as Prometheus does.
func (n *node) scrape(p *plugin) {
	n.Helper()
	port := metricsAddress.FindStringSubmatch(p.log.String())
	if port == nil {
		n.Fatal("the plugin serves no metrics")
	}
	response, err := http.Get("http://127.0.0.1:" + port[1] + "/metrics")
	n.must(err)
	n.must(response.Body.Close())
	if response.StatusCode != http.StatusOK {
		n.Fatalf("metrics: %s", response.Status)
	}
}

// resident is a line of proc(5) about the process, in megabytes.
func (n *node) resident(p *plugin, line string) float64 {
	n.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	n.must(err)
	return megabytes(n, string(text), line+":") * 1024
}

// megabytes is the number that follows a word.
func megabytes(t testing.TB, text, word string) float64 {
	t.Helper()
	_, rest, found := strings.Cut(text, word)
	var number float64
	if _, err := fmt.Sscan(rest, &number); err != nil || !found {
		t.Fatalf("there is no %s: %v", word, err)
	}
	return number / 1e6
}

// group is a control group whose memory the kernel counts.
type group struct {
	testing.TB
	dir string
	// usage is the file that has all of it, and inactive the line of memory.stat that has
	// the files that were not used lately, as cadvisor reads them for kubelet.
	usage, inactive string
}

// newGroup needs root.
func newGroup(t testing.TB) (*group, error) {
	t.Helper()
	g := &group{TB: t, usage: "memory.current", inactive: "\ninactive_file "}
	parent := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(parent, "cgroup.controllers")); errors.Is(err, fs.ErrNotExist) {
		parent = filepath.Join(parent, "memory") // version 1
		g.usage, g.inactive = "memory.usage_in_bytes", "\ntotal_inactive_file "
	} else if err := os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
		return nil, err
	}
	var err error
	if g.dir, err = os.MkdirTemp(parent, "mica-bench-"); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		fixture.Eventually(t, "the control group is empty", func() error { return unix.Rmdir(g.dir) })
	})
	return g, nil
}

// starter makes a process join the group before it begins.
func (g *group) starter() []string {
	return []string{"/bin/sh", "-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(g.dir, "cgroup.procs")}
}

// workingSet is in megabytes.
func (g *group) workingSet() float64 {
	g.Helper()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(g.dir, name))
		if err != nil {
			g.Fatal(err)
		}
		return string(text)
	}
	return megabytes(g, read(g.usage), "") - megabytes(g, "\n"+read("memory.stat"), g.inactive)
}

// forget lets the kernel read a file from the disk again, as after a reboot: who then reads it first
// is who has its pages.
func forget(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return errors.Join(file.Sync(), unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED))
}
