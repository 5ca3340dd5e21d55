package crash_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/test/fixture"
)

// api is of an API server what preparing claims needs: a node, and claims. It
// takes no slices.
type api struct {
	*httptest.Server
	mu     sync.Mutex
	claims map[string]*resourceapi.ResourceClaim
	away   bool
}

func newAPI(t testing.TB) *api {
	t.Helper()
	a := &api{claims: map[string]*resourceapi.ResourceClaim{}}
	a.Server = httptest.NewServer(http.HandlerFunc(a.answer))
	t.Cleanup(a.Close)
	return a
}

func (a *api) answer(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	const claims = "/apis/resource.k8s.io/v1/namespaces/" + fixture.Namespace + "/resourceclaims/"
	w.Header().Set("Content-Type", "application/json")
	name, ofClaims := strings.CutPrefix(strings.TrimSuffix(r.URL.Path, "/status"), claims)
	claim := a.claims[name]
	switch {
	case a.away:
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	case r.URL.Path == "/api/v1/nodes/"+fixture.NodeName:
		write(w, &corev1.Node{
			TypeMeta:   metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Name: fixture.NodeName, UID: "uid-node"},
		})
	case ofClaims && claim != nil:
		write(w, claim)
	case ofClaims:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	default:
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	}
}

func write(w http.ResponseWriter, object any) {
	_ = json.NewEncoder(w).Encode(object) // a client that has been killed does not read it
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.WriteHeader(code)
	write(w, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: reason, Code: int32(code)})
}

// put is a claim that was allocated these devices, a request each.
func (a *api) put(name string, devices ...string) *resourceapi.ResourceClaim {
	var results []resourceapi.DeviceRequestAllocationResult
	for i, device := range devices {
		results = append(results, fixture.Result(fmt.Sprint("r", i), device))
	}
	claim := fixture.Claim(name, results...)
	claim.TypeMeta = metav1.TypeMeta{Kind: "ResourceClaim", APIVersion: "resource.k8s.io/v1"}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.claims[name] = claim
	return claim
}

func (a *api) remove(claim *resourceapi.ResourceClaim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.claims, claim.Name)
}

func (a *api) setAway(away bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.away = away
}
