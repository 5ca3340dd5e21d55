package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// credentials is where kubelet puts a pod's service account.
const credentials = "/var/run/secrets/kubernetes.io/serviceaccount/"

// getAPI asks for the API server's version as the pod's service account, at
// the address that every in-cluster client uses.
func getAPI(out io.Writer) error {
	token, err := os.ReadFile(credentials + "token")
	if err != nil {
		return fmt.Errorf("reading the pod's token: %w", err)
	}
	authority, err := os.ReadFile(credentials + "ca.crt")
	if err != nil {
		return fmt.Errorf("reading the cluster's authority: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	client := &http.Client{
		Timeout:   30 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}},
	}
	address := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	request, err := http.NewRequest(http.MethodGet, "https://"+address+"/version", nil)
	if err != nil {
		return fmt.Errorf("making the request: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("asking the API server: %w", err)
	}
	defer response.Body.Close()
	fmt.Fprintln(out, address, response.Status)
	if _, err := io.Copy(out, response.Body); err != nil {
		return fmt.Errorf("reading the API server's answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the API server at %s refuses", address)
	}
	return nil
}
