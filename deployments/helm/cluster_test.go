package helm_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

// cluster is what an API server says of itself, as far as the chart's templates ask.
type cluster struct {
	version   string
	servesDRA bool
	class     *deviceClass
	namespace string
	// daemonSets are those of all namespaces.
	daemonSets []map[string]any
}

// deviceClass is a DeviceClass that exists; release and namespace are those of the Helm
// release that owns it, empty where no release does.
type deviceClass struct {
	name, release, namespace string
}

// start serves the cluster on the loopback interface until the test ends and returns the
// path of a kubeconfig for it.
func (c cluster) start(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	reply := func(path string, body any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(body)
		})
	}
	type object = map[string]any
	reply("/version", object{"major": "1", "minor": "37", "gitVersion": c.version})
	reply("/api", object{"kind": "APIVersions", "versions": []string{"v1"}})
	reply("/api/v1", object{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": []object{{"name": "namespaces", "kind": "Namespace", "verbs": []string{"get"}}}})
	if c.namespace != "" {
		reply("/api/v1/namespaces/"+c.namespace, object{"kind": "Namespace", "apiVersion": "v1", "metadata": object{"name": c.namespace}})
	}

	groups := []object{}
	if c.servesDRA {
		version := object{"groupVersion": "resource.k8s.io/v1", "version": "v1"}
		groups = append(groups, object{"name": "resource.k8s.io", "versions": []object{version}, "preferredVersion": version})
		reply("/apis/resource.k8s.io/v1", object{
			"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "resource.k8s.io/v1",
			"resources": []object{{"name": "deviceclasses", "kind": "DeviceClass", "verbs": []string{"get"}}},
		})
	}
	apps := object{"groupVersion": "apps/v1", "version": "v1"}
	groups = append(groups, object{"name": "apps", "versions": []object{apps}, "preferredVersion": apps})
	reply("/apis/apps/v1", object{
		"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "apps/v1",
		"resources": []object{{"name": "daemonsets", "kind": "DaemonSet", "namespaced": true, "verbs": []string{"get", "list"}}},
	})
	reply("/apis/apps/v1/daemonsets", object{"kind": "DaemonSetList", "apiVersion": "apps/v1", "metadata": object{}, "items": append([]object{}, c.daemonSets...)})
	reply("/apis", object{"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
	if c.class != nil {
		metadata := object{"name": c.class.name}
		if c.class.release != "" {
			metadata["annotations"] = object{
				"meta.helm.sh/release-name":      c.class.release,
				"meta.helm.sh/release-namespace": c.class.namespace,
			}
		}
		reply("/apis/resource.k8s.io/v1/deviceclasses/"+c.class.name, object{
			"kind": "DeviceClass", "apiVersion": "resource.k8s.io/v1", "metadata": metadata,
		})
	}

	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: test\ncontexts:\n- name: test\n  context: {cluster: test, user: test}\nclusters:\n- name: test\n  cluster: {server: %q}\nusers:\n- name: test\n", server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}
