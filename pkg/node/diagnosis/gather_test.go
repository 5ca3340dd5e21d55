package diagnosis

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/test/fixture"
)

// report returns a report of the sections, as text and decoded.
func report(t *testing.T, limits Limits, sections ...Section) (string, map[string]any) {
	t.Helper()
	var text strings.Builder
	must(t, Gather(t.Context(), &text, limits, sections...))
	var decoded map[string]any
	if err := yaml.UnmarshalStrict([]byte(text.String()), &decoded); err != nil {
		t.Fatalf("the report is no YAML: %v\n%s", err, text.String())
	}
	if len(decoded) != len(sections) {
		t.Errorf("the report has %d sections of %d:\n%s", len(decoded), len(sections), text.String())
	}
	return text.String(), decoded
}

func value(v any) func(context.Context) (any, error) {
	return func(context.Context) (any, error) { return v, nil }
}

// newState makes the files of a plugin.
func newState(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	records, err := journal.Open(filepath.Join(dir, "claims"))
	must(t, err)
	for _, record := range []journal.Record{
		{ClaimUID: "uid-1", Namespace: "team-a", Name: "train", BootID: "boot-1", State: journal.Prepared, Devices: []journal.Device{{
			Request: "gpu", Device: "gpu-0", UUID: "GPU-0", Form: gpu.Form{Base: gpu.BaseWhole}, Steps: []journal.Step{{Name: "disable-mig"}},
		}}},
		{ClaimUID: "uid-2", Namespace: "team-b", Name: "infer", BootID: "boot-0", State: journal.Intent},
	} {
		must(t, records.Put(t.Context(), record))
	}
	for name, content := range map[string]string{
		"health.json":       `{"bootID":"boot-1","gpus":{"GPU-0":{"reach":1,"action":1,"faults":[{"condition":"xid"}]}},"seen":{"GPU-0":{}}}`,
		"cdi/vendor.yaml":   "cdiVersion: 1.0.0",
		"mps/status/d.json": `{"daemon":{"id":"d","devices":["GPU-0"]},"state":"failed","reason":"it ended"}`,
		"dev/nvidia0":       "", // a test may not be allowed to make device nodes
	} {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must(t, os.WriteFile(path, []byte(content), 0o600))
	}
	must(t, os.Chtimes(filepath.Join(dir, "cdi/vendor.yaml"), time.Time{}, time.Unix(1e9, 0)))
	return dir
}

// tree lists the files below a directory, with times.
func tree(t *testing.T, dir string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		files = append(files, fmt.Sprint(path, info.Size(), info.Mode(), info.ModTime()))
		return err
	})
	must(t, err)
	return files
}

func cluster() (kubernetes.Interface, error) {
	kind := "mig"
	return fake.NewClientset(
		&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fixture.NodeName, Labels: map[string]string{"nvidia.com/gpu.present": "true", "team": "a"}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule}}},
			Status: corev1.NodeStatus{
				Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.1.2.3"}},
				NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: "v1.37.1", ContainerRuntimeVersion: "containerd://2.1", OSImage: "Linux", KernelVersion: "6.12", BootID: "boot-1"},
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, {Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue, Reason: "Full", Message: "the disk is full"}},
			},
		},
		&resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "node-a-1"},
			Spec: resourceapi.ResourceSliceSpec{
				Pool: resourceapi.ResourcePool{Name: fixture.NodeName, Generation: 3, ResourceSliceCount: 1},
				Devices: []resourceapi.Device{
					{Name: "gpu-0-mig-1", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: &kind}}},
					{Name: "gpu-1", Taints: []resourceapi.DeviceTaint{{Key: "nvidia.com/health", Value: "xid-79", Effect: resourceapi.DeviceTaintEffectNoSchedule}}},
				},
			},
		},
	), nil
}

func TestAReport(t *testing.T) {
	dir := newState(t)
	before := tree(t, dir)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "# HELP mica_prepared_claims Claims.\nmica_prepared_claims 1\nmica_device_busy{device=\"gpu-0\"} 1\nmica_claim_operation_duration_seconds_bucket{le=\"1\"} 1\nmica_claim_operation_duration_seconds_count{result=\"error\"} 2\ngo_goroutines 7\n")
	}))
	defer server.Close()
	_, portText, _ := net.SplitHostPort(server.Listener.Addr().String())
	port, _ := strconv.Atoi(portText)
	proc := fstest.MapFS{
		"sys/kernel/osrelease":  &fstest.MapFile{Data: []byte("6.12.1\n")},
		"driver/nvidia/version": &fstest.MapFile{Data: []byte("NVRM version: NVIDIA UNIX Open Kernel Module  580.95.05\nGCC version: 12\n")},
		"self/mountinfo": &fstest.MapFile{Data: []byte(`21 1 0:20 / / rw,relatime - overlay overlay rw
22 21 0:21 /var/run/cdi /var/run/cdi rw,nosuid shared:5 master:1 - tmpfs tmpfs rw,size=1
23 21 0:22 / /var/run/cdinot rw - ext4 /dev/sda rw
`)},
	}
	flags := pflag.NewFlagSet("plugin", pflag.ContinueOnError)
	flags.String("node-name", fixture.NodeName, "")
	flags.String("empty", "", "")
	library := fixture.Library(t, fixture.Machine(t, fixture.File(t, "mig-static")))
	sections := []Section{
		Versions("v1.2.3", proc),
		Node(cluster, fixture.NodeName),
		Flags(flags),
		DriverRoot("/", "/nowhere", ""),
		NVML(func() (GPUs, error) { return library, nil }),
		Selftest(func(context.Context) *Report {
			return &Report{Checks: []Check{{Name: "driver", Status: Failed, Findings: []string{"it does not answer", "load it"}}}}
		}),
		Health(filepath.Join(dir, "health.json")),
		Published(cluster, fixture.Driver, fixture.NodeName),
		Recorded(filepath.Join(dir, "claims"), "boot-1"),
		CDI(filepath.Join(dir, "cdi")),
		MPS(filepath.Join(dir, "mps")),
		Metrics(port),
		Mounts(proc, "/var/run/cdi", "", "/var/lib"),
		Devices(filepath.Join(dir, "dev"), ""),
	}
	text, _ := report(t, DefaultLimits, sections...)
	text = strings.NewReplacer(dir, "DIR", runtime.Version(), "GO", runtime.GOOS+"/"+runtime.GOARCH, "PLATFORM", fmt.Sprintf("%d:%d\n", os.Getuid(), os.Getgid()), "OWNER\n").Replace(text)
	fixture.Golden(t, "report.yaml", text)
	if after := tree(t, dir); strings.Join(after, "\n") != strings.Join(before, "\n") {
		t.Errorf("the report has changed something:\n%s\nwas\n%s", after, before)
	}
}

func TestADamagedRecordIsNamed(t *testing.T) {
	dir := newState(t)
	must(t, os.WriteFile(filepath.Join(dir, "claims/uid-3.json"), []byte("{"), 0o600))
	_, decoded := report(t, DefaultLimits, Recorded(filepath.Join(dir, "claims"), "boot-1"))
	if damaged := fmt.Sprint(decoded["claims"].(map[string]any)["damaged"]); !strings.Contains(damaged, "uid-3.json") {
		t.Errorf("damaged is %s", damaged)
	}
}

func TestWhereThereIsNothing(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	text, _ := report(t, DefaultLimits, Health(missing), MPS(""), Metrics(-1))
	if strings.Contains(text, "error") {
		t.Errorf("nothing is an error:\n%s", text)
	}
}

// stuck are GPUs whose driver does not come back.
type stuck struct {
	GPUs
	release chan struct{}
}

func (s stuck) Discover() (gpu.Node, []error, error) { <-s.release; return gpu.Node{}, nil, nil }

func TestSectionsFailOnTheirOwn(t *testing.T) {
	gpus := stuck{release: make(chan struct{})}
	defer close(gpus.release)
	var missing map[string]string
	_, decoded := report(t, Limits{Time: 50 * time.Millisecond, Bytes: 1 << 10},
		Section{"first", value("here")},
		NVML(func() (GPUs, error) { return gpus, nil }),
		Section{"failed", func(context.Context) (any, error) { return nil, errors.New("the disk is: gone") }},
		Section{"panicked", func(context.Context) (any, error) { missing["a"] = "b"; return nil, nil }},
		Section{"odd", value(func() {})},
		Section{"last", value([]string{"here"})},
	)
	for section, want := range map[string]string{
		"first": "here", "nvml": "no answer within 50ms", "failed": "the disk is: gone", "panicked": "assignment to entry in nil map",
		"odd": "cannot be encoded", "last": "here",
	} {
		if got := fmt.Sprint(decoded[section]); !strings.Contains(got, want) {
			t.Errorf("section %s is %q, without %q", section, got, want)
		}
	}
}

func TestALargeSectionIsCut(t *testing.T) {
	lines := make([]string, 1000)
	for i := range lines {
		lines[i] = fmt.Sprintf("  - {line: %d", i)
	}
	text, decoded := report(t, Limits{Time: time.Minute, Bytes: 500}, Section{"large", value(map[string]any{"lines": lines})}, Section{"last", value(1)})
	if len(text) > 1000 {
		t.Errorf("it has %d bytes", len(text))
	}
	large := decoded["large"].(map[string]any)
	if !strings.Contains(fmt.Sprint(large["error"]), "bytes and is cut") || !strings.Contains(fmt.Sprint(large["beginning"]), "line: 3") {
		t.Errorf("it has no beginning:\n%s", text)
	}
}

func TestSecretsAreNotShown(t *testing.T) {
	const secret = "hunter2"
	for name, tc := range map[string]struct {
		value any
		kept  string
	}{
		"a name":            {map[string]string{"apiToken": secret, "node": "a"}, "node: a"},
		"a name below":      {map[string]any{"list": []any{map[string]string{"PASSWORD": secret}}}, "PASSWORD"},
		"an address":        {"proxy http://user:" + secret + "@proxy:3128 is down", "proxy:3128 is down"},
		"a header":          {"Authorization: Bearer " + secret + " was refused", "Authorization"},
		"a bearer":          {"asked with bearer " + secret, "asked with"},
		"a parameter":       {"https://host/path?token=" + secret + "&node=a", "node=a"},
		"a variable":        {"AWS_SECRET_ACCESS_KEY_SECRET=" + secret + " is set", "is set"},
		"an encoded object": {`{"password": "` + secret + `", "node": "a"}`, "node"},
		"a JSON Web Token":  {"token eyJhbGciOiJSUzI1NiJ9.eyJ" + secret + ".c2ln ends", "ends"},
		"a private key":     {"-----BEGIN RSA PRIVATE KEY-----\n" + secret + "\n-----END RSA PRIVATE KEY----- follows", "follows"},
		"half a key":        {"see -----BEGIN PRIVATE KEY-----\n" + secret, "see"},
		"a key of a map":    {map[string]int{"token=" + secret: 1}, "token="},
	} {
		t.Run(name, func(t *testing.T) {
			for _, section := range []Section{
				{"section", value(tc.value)},
				{"section", func(context.Context) (any, error) { return nil, fmt.Errorf("%v", tc.value) }},
			} {
				text, _ := report(t, DefaultLimits, section)
				if strings.Contains(text, secret) {
					t.Errorf("it shows the secret:\n%s", text)
				}
			}
			if text, _ := report(t, DefaultLimits, Section{"section", value(tc.value)}); !strings.Contains(text, tc.kept) {
				t.Errorf("it lacks %q:\n%s", tc.kept, text)
			}
		})
	}
}
