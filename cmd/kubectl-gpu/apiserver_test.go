package main

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// apiServer serves objects of resource.k8s.io page by page, as protobuf.
type apiServer struct {
	*httptest.Server
	// items are objects as they are in an answer, by what is listed, such as resourceslices, or
	// namespaces/research/resourceclaims.
	items map[string][]runtime.Object
	// files are whole answers that were made before, page by page: not in memory, where they would be
	// counted as what is measured.
	files map[string][]string
	// answers are what else is there, as JSON, by path.
	answers map[string]string
	// forbidden may not be listed.
	forbidden []string

	lock sync.Mutex
	// asked are the requests.
	asked []*http.Request
}

func newAPIServer(t testing.TB) *apiServer {
	s := &apiServer{items: map[string][]runtime.Object{}, files: map[string][]string{}}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

// flags reach it.
func (s *apiServer) flags(t testing.TB) []string {
	t.Helper()
	config := clientcmdapi.Config{
		CurrentContext: "test",
		Contexts:       map[string]*clientcmdapi.Context{"test": {Cluster: "test", Namespace: "research"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"test": {Server: s.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})}},
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(config, path); err != nil {
		t.Fatal(err)
	}
	return []string{"--kubeconfig", path}
}

var resourceGroup = schema.GroupVersion{Group: "resource.k8s.io", Version: "v1"}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	s.lock.Lock()
	s.asked = append(s.asked, r)
	s.lock.Unlock()
	switch r.URL.Path {
	case "/api":
		answer(w, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	case "/apis":
		version := metav1.GroupVersionForDiscovery{GroupVersion: resourceGroup.String(), Version: "v1"}
		answer(w, metav1.APIGroupList{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"},
			Groups:   []metav1.APIGroup{{Name: resourceGroup.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}},
		})
	case "/apis/resource.k8s.io/v1":
		list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: resourceGroup.String()}
		for kind, namespaced := range map[string]bool{"ResourceSlice": false, "ResourceClaim": true, "DeviceTaintRule": false} {
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: strings.ToLower(kind) + "s", SingularName: strings.ToLower(kind), Kind: kind, Namespaced: namespaced, Verbs: metav1.Verbs{"get", "list", "watch"},
			})
		}
		answer(w, list)
	default:
		if text, is := s.answers[r.URL.Path]; is {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(text))
			return
		}
		s.list(w, r, strings.TrimPrefix(r.URL.Path, "/apis/resource.k8s.io/v1/"))
	}
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Reason: reason, Code: int32(code), Message: message,
	})
}

func (s *apiServer) list(w http.ResponseWriter, r *http.Request, what string) {
	switch {
	case slices.Contains(s.forbidden, what):
		refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden, what+" is forbidden")
		return
	case strings.HasPrefix(what, "/"):
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, what+" not found")
		return
	}
	page, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	if files := s.files[what]; len(files) > 0 {
		http.ServeFile(w, r, files[page])
		return
	}
	size, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	all := s.items[what]
	from := page * size
	to := min(from+size, len(all))
	next := ""
	if to < len(all) {
		next = strconv.Itoa(page + 1)
	}
	_, _ = w.Write(encodePage(what, all[from:to], next))
}

// encodePage is a list as an API server sends it.
func encodePage(what string, items []runtime.Object, next string) []byte {
	meta := metav1.ListMeta{ResourceVersion: "1", Continue: next}
	var list runtime.Object
	switch what[strings.LastIndex(what, "/")+1:] {
	case "resourceslices":
		slices := &resourceapi.ResourceSliceList{ListMeta: meta}
		for _, item := range items {
			slices.Items = append(slices.Items, *item.(*resourceapi.ResourceSlice))
		}
		list = slices
	case "resourceclaims":
		claims := &resourceapi.ResourceClaimList{ListMeta: meta}
		for _, item := range items {
			claims.Items = append(claims.Items, *item.(*resourceapi.ResourceClaim))
		}
		list = claims
	default:
		rules := &resourceapi.DeviceTaintRuleList{ListMeta: meta}
		for _, item := range items {
			rules.Items = append(rules.Items, *item.(*resourceapi.DeviceTaintRule))
		}
		list = rules
	}
	info, found := runtime.SerializerInfoForMediaType(clientgoscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !found {
		panic("no protobuf")
	}
	wire, err := runtime.Encode(clientgoscheme.Codecs.EncoderForVersion(info.Serializer, resourceGroup), list)
	if err != nil {
		panic(fmt.Sprintf("encode %s: %v", what, err))
	}
	return wire
}
