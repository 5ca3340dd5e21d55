package crash_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/mica-gpu/mica/test/fixture"
)

// api is of an API server what preparing claims needs: a node, policies that do not
// change, and claims. It takes no slices before keepSlices.
type api struct {
	*httptest.Server
	policies []runtime.Object
	closing  chan struct{}
	mu       sync.Mutex
	claims   map[string]*resourceapi.ResourceClaim
	away     bool
	// kept are the slices, nil where none are taken.
	kept *resourceapi.ResourceSliceList
}

func newAPI(t testing.TB, policies ...runtime.Object) *api {
	t.Helper()
	a := &api{policies: policies, claims: map[string]*resourceapi.ResourceClaim{}, closing: make(chan struct{})}
	a.Server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(func() {
		close(a.closing)
		a.Close()
	})
	return a
}

// serve answers, and keeps a watch of what never changes open.
func (a *api) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("watch") == "" || a.isAway() {
		a.answer(w, r)
		return
	}
	if r.URL.Query().Get("sendInitialEvents") != "" { // clients list instead
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	select {
	case <-a.closing:
	case <-r.Context().Done():
	}
}

func (a *api) isAway() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.away
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
		write(w, theNode)
	case r.URL.Path == "/api/v1/nodes":
		write(w, listOf("v1", "NodeList", theNode))
	case r.URL.Path == "/apis/mica.gpu/v1alpha1/gpupolicies":
		write(w, listOf("mica.gpu/v1alpha1", "GPUPolicyList", a.policies...))
	case a.kept != nil && r.URL.Path == "/apis/resource.k8s.io/v1/resourceslices":
		a.answerSlices(w, r)
	case ofClaims && claim != nil && a.kept != nil:
		writeBinary(w, claim)
	case ofClaims && claim != nil:
		write(w, claim)
	case ofClaims:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	default:
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
	}
}

// keepSlices takes slices from now on.
func (a *api) keepSlices() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kept = &resourceapi.ResourceSliceList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
}

// answerSlices lists and creates as an API server does, in its own form.
func (a *api) answerSlices(w http.ResponseWriter, r *http.Request) {
	var answer runtime.Object = a.kept
	if r.Method == http.MethodPost {
		body, _ := io.ReadAll(r.Body) // a client that has been killed sends half
		made, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
			return
		}
		slice := made.(*resourceapi.ResourceSlice)
		slice.Name, slice.ResourceVersion = fmt.Sprint(slice.GenerateName, len(a.kept.Items)), "1"
		slice.UID = types.UID("uid-" + slice.Name)
		if r.URL.Query().Get("dryRun") == "" {
			a.kept.Items = append(a.kept.Items, *slice)
		}
		answer = slice
	}
	writeBinary(w, answer)
}

// writeBinary writes an object in the form that the plugin asks for.
func writeBinary(w http.ResponseWriter, object runtime.Object) {
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	_ = scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), resourceapi.SchemeGroupVersion).Encode(object, w)
}

var theNode = &corev1.Node{
	TypeMeta:   metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
	ObjectMeta: metav1.ObjectMeta{Name: fixture.NodeName, UID: "uid-node"},
}

func listOf(version, kind string, items ...runtime.Object) any {
	return map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{"resourceVersion": "1"}, "items": items}
}

func write(w http.ResponseWriter, object any) {
	_ = json.NewEncoder(w).Encode(object) // a client that has been killed does not read it
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.WriteHeader(code)
	write(w, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: reason, Code: int32(code)})
}

// put is a claim that was allocated these devices, a request each, or shares of them.
func (a *api) put(name string, devices ...string) *resourceapi.ResourceClaim {
	return a.putConfigured(name, "", devices...)
}

// putConfigured is a claim with an opaque configuration.
func (a *api) putConfigured(name, parameters string, devices ...string) *resourceapi.ResourceClaim {
	var results []resourceapi.DeviceRequestAllocationResult
	for i, device := range devices {
		result := fixture.Result(fmt.Sprint("r", i), device)
		if strings.HasSuffix(device, "-timeslice") || strings.HasSuffix(device, "-mps") {
			id := types.UID(fmt.Sprintf("share-%s-%d", name, i))
			result.ShareID = &id
			result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse("2Gi")}
		}
		results = append(results, result)
	}
	claim := fixture.Claim(name, results...)
	claim.TypeMeta = metav1.TypeMeta{Kind: "ResourceClaim", APIVersion: "resource.k8s.io/v1"}
	if parameters != "" {
		claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
			Source: resourceapi.AllocationConfigSourceClaim,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: fixture.Driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)},
			}},
		}}
	}
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
