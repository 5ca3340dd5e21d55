package supervisor

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/mica-gpu/mica/test/cluster/internal/layout"
)

// api asks the API server the few things that starting a cluster needs. A
// whole client library would make this program larger than kubectl.
type api struct {
	client *http.Client
	server string
}

func newAPI(dir layout.Dir) (*api, error) {
	pair, err := tls.LoadX509KeyPair(pkiFile(dir, admin+".crt"), pkiFile(dir, admin+".key"))
	if err != nil {
		return nil, fmt.Errorf("reading the administrator's certificate: %w", err)
	}
	authority, err := os.ReadFile(pkiFile(dir, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's authority: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	return &api{
		server: fmt.Sprintf("https://127.0.0.1:%d", layout.APIPort),
		client: &http.Client{
			Timeout: 10 * time.Second,
			Transport: &http.Transport{
				TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, MinVersion: tls.VersionTLS12},
			},
		},
	}, nil
}

// get reads an object; into may be nil.
func (a *api) get(ctx context.Context, path string, into any) error {
	return a.do(ctx, http.MethodGet, path, "", nil, into)
}

// merge applies a merge patch.
func (a *api) merge(ctx context.Context, path string, patch any) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("encoding a patch of %s: %w", path, err)
	}
	return a.do(ctx, http.MethodPatch, path, "application/merge-patch+json", body, nil)
}

func (a *api) do(ctx context.Context, method, path, contentType string, body []byte, into any) error {
	request, err := http.NewRequestWithContext(ctx, method, a.server+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("making a request for %s: %w", path, err)
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := a.client.Do(request)
	if err != nil {
		return fmt.Errorf("asking the API server: %w", err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("reading the API server's answer about %s: %w", path, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the API server answers %s to %s %s: %.300s", response.Status, method, path, data)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("reading the API server's answer about %s: %w", path, err)
	}
	return nil
}
