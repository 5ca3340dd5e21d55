package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/mica-gpu/mica/pkg/node/driver"
	"github.com/mica-gpu/mica/pkg/settings"
	"github.com/mica-gpu/mica/test/fixture"
)

func TestMain(m *testing.M) {
	// The commands of all tests set up the logging of one process.
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
	driver.RegisterMetrics(legacyregistry.MustRegister)
	os.Exit(m.Run())
}

// execute runs a command line.
func execute(t *testing.T, arguments ...string) (output string, err error) {
	t.Helper()
	var out bytes.Buffer
	command := newCommand()
	command.SetArgs(append([]string{}, arguments...)) // nil would mean the arguments of the test
	command.SetOut(&out)
	command.SetErr(io.Discard)
	err = command.ExecuteContext(t.Context())
	return out.String(), err
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// Bad input ends in one sentence that says what was found and what to do.
func TestBadInput(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for name, tc := range map[string]struct {
		arguments   []string
		environment map[string]string
		want        []string
	}{
		"an unknown flag":          {arguments: []string{"--nod-name=a"}, want: []string{"unknown flag: --nod-name"}},
		"an unknown command":       {arguments: []string{"serve"}, want: []string{`unknown command "serve" for "kubelet-plugin"`}},
		"no node name":             {want: []string{"no node name", "set --node-name or NODE_NAME", "spec.nodeName"}},
		"a port that is no number": {arguments: []string{"--metrics-port=http"}, want: []string{`invalid argument "http" for "--metrics-port"`}},
		"a metrics port too high":  {arguments: []string{"--node-name=a", "--metrics-port=70000"}, want: []string{"--metrics-port is 70000", "at most 65535"}},
		"no requests a second":     {arguments: []string{"--node-name=a", "--kube-api-qps=0"}, want: []string{"--kube-api-qps is 0", "must be positive"}},
		"a variable of a service link": {
			environment: map[string]string{"METRICS_PORT": "tcp://10.0.0.1:9090"},
			want:        []string{"environment variable METRICS_PORT", `"tcp://10.0.0.1:9090"`},
		},
		"an unknown logging format": {arguments: []string{"--node-name=a", "--logging-format=xml"}, want: []string{"format", "xml"}},
		"a kubeconfig that is not there": {
			arguments: []string{"--node-name=a", "--kubeconfig=" + missing},
			want:      []string{"read --kubeconfig", missing, "give a readable kubeconfig file"},
		},
		"a kubeconfig without a cluster": {
			arguments: []string{"--node-name=a", "--kubeconfig=" + write(t, "kubeconfig", "apiVersion: v1\nkind: Config\n")},
			want:      []string{"read --kubeconfig", "give a readable kubeconfig file"},
		},
		"not in a pod": {
			arguments:   []string{"--node-name=a"},
			environment: map[string]string{"KUBERNETES_SERVICE_HOST": ""},
			want:        []string{"find the API server", "run in a pod with a service account, or set --kubeconfig"},
		},
		"an unknown output format": {arguments: []string{"discover", "-o", "json"}, want: []string{`output format "json" is unknown`, "use -o table or -o yaml"}},
		"no NVIDIA driver": {
			arguments: []string{"discover", "--container-driver-root=" + missing},
			want:      []string{"no usable NVML library", missing, "install the NVIDIA driver there or set --nvidia-driver-root"},
		},
		"an unknown format of a report": {arguments: []string{"selftest", "-o", "table"}, want: []string{`output format "table" is unknown`, "use -o text, -o json or -o yaml"}},
		"a self-test without a driver": {
			arguments: []string{"selftest", "--container-driver-root=" + missing, "--cdi-root=" + missing},
			want:      []string{"of 4 checks failed", "attach it to a bug"},
		},
		"an argument too many": {arguments: []string{"version", "please"}, want: []string{`unknown command "please" for "kubelet-plugin version"`}},
	} {
		t.Run(name, func(t *testing.T) {
			for variable, value := range tc.environment {
				t.Setenv(variable, value)
			}
			_, err := execute(t, tc.arguments...)
			fixture.Sentence(t, err, tc.want...)
		})
	}
}

func TestAPortThatIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", ":0")
	must(t, err)
	defer taken.Close()
	_, port, err := net.SplitHostPort(taken.Addr().String())
	must(t, err)
	for flag, other := range map[string]string{"healthcheck-port": "metrics-port", "metrics-port": "healthcheck-port"} {
		fixture.Sentence(t, serveAgainst(t, "--"+flag+"="+port, "--"+other+"=0"), "listen on --"+flag, "address already in use", "choose a free port, or -1 for none")
	}
}

// serveAgainst serves a cluster without nodes.
func serveAgainst(t *testing.T, more, other string) error {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	}))
	defer api.Close()
	dir, err := os.MkdirTemp("", "mica-")
	must(t, err)
	defer os.RemoveAll(dir)
	_, err = execute(t, more,
		"--node-name=node-z",
		"--kubeconfig="+write(t, "kubeconfig", fmt.Sprintf(kubeconfig, api.URL)),
		"--kubelet-plugins-directory-path="+dir, "--kubelet-registrar-directory-path="+dir, "--cdi-root="+dir,
		"--container-driver-root="+dir, "--nvidia-cdi-hook-path=/hook", other)
	return err
}

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`

func TestFlagsOverrideTheEnvironment(t *testing.T) {
	for name, tc := range map[string]struct {
		arguments   []string
		environment map[string]string
		want        flags
	}{
		"the environment overrides defaults": {environment: map[string]string{"NODE_NAME": "a", "METRICS_PORT": "-1", "DRIVER_ROOT_CTR_PATH": "/other", "HEALTHCHECK_PORT": "0"}, want: flags{nodeName: "a", driverName: "gpu.nvidia.com", metricsPort: -1, localDriverRoot: "/other"}},
		"flags override the environment":     {arguments: []string{"--node-name=b", "--metrics-port=9"}, environment: map[string]string{"NODE_NAME": "a", "METRICS_PORT": "1"}, want: flags{nodeName: "b", driverName: "gpu.nvidia.com", metricsPort: 9, healthPort: 51515, localDriverRoot: "/driver-root"}},
		"an empty variable is none":          {environment: map[string]string{"DRIVER_NAME": "", "METRICS_PORT": ""}, want: flags{driverName: "gpu.nvidia.com", metricsPort: 8080, healthPort: 51515, localDriverRoot: "/driver-root"}},
	} {
		t.Run(name, func(t *testing.T) {
			for variable, value := range tc.environment {
				t.Setenv(variable, value)
			}
			f := &flags{}
			set := pflag.NewFlagSet("test", pflag.ContinueOnError)
			set.BoolP("help", "h", false, "as cobra adds it")
			f.addHardware(set)
			f.addCluster(set)
			must(t, set.Parse(tc.arguments))
			must(t, settings.FromEnvironment(set, environment))
			got := flags{nodeName: f.nodeName, driverName: f.driverName, metricsPort: f.metricsPort, healthPort: f.healthPort, localDriverRoot: f.localDriverRoot}
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	before := linked
	defer func() { linked = before }()
	linked = "v1.2.3"
	if output, err := execute(t, "version"); err != nil || output != "v1.2.3\n" {
		t.Errorf("got %q, %v", output, err)
	}
}

// A flag that is ignored would hide one of the same name, whose value got lost.
func TestNoOwnFlagIsIgnoredAsNVIDIAs(t *testing.T) {
	command := newCommand()
	for name := range settings.NVIDIAFlags {
		if flag := command.Flags().Lookup(name); flag == nil || !flag.Hidden || command.PersistentFlags().Lookup(name) != nil {
			t.Errorf("--%s is a flag of Mica's: take it out of settings.NVIDIAFlags", name)
		}
	}
}
