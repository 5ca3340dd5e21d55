package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/test/cluster/internal/layout"
)

func TestFailureSaysWhereTheLogsAre(t *testing.T) {
	dir := layout.Dir(t.TempDir())
	if err := os.WriteFile(dir.Failure(), []byte("etcd ended\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		options Options
		want    string
	}{
		"a cluster that stays":             {Options{}, "all logs are in " + dir.Logs()},
		"a private one, whose logs go":     {Options{Private: true}, "--logs DIR keeps all logs"},
		"a private one, whose logs do not": {Options{Private: true, Logs: "bin/logs"}, "all logs are in bin/logs"},
	} {
		test.options.Dir = dir
		got := Failure(test.options).Error()
		if !strings.Contains(got, "etcd ended") || !strings.HasSuffix(got, test.want) {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

func TestCopyLogsReplacesThoseOfAnEarlierRun(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		filepath.Join(from, "kubelet.log"):   "new",
		filepath.Join(from, "pods/a/0.log"):  "new",
		filepath.Join(to, "kubelet.log"):     "old",
		filepath.Join(to, "pods/gone/0.log"): "old",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := CopyLogs(from, to); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"kubelet.log", "pods/a/0.log"} {
		if text, err := os.ReadFile(filepath.Join(to, path)); err != nil || string(text) != "new" {
			t.Errorf("%s holds %q, %v", path, text, err)
		}
	}
	if _, err := os.Stat(filepath.Join(to, "pods/gone")); err == nil {
		t.Error("a pod of the earlier run is still there")
	}
}
