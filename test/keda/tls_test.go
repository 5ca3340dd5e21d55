package keda

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{certificate: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: t.Name()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	own, key := a.make(t, a.certificate)
	a.key, a.pem = key, own
	return a
}

// make signs with the authority's key, where it has one yet, or with the new one.
func (a *authority) make(t *testing.T, template *x509.Certificate) (string, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer := a.key
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), key
}

// sign gives a certificate and its key, for a server at 127.0.0.1 or a client.
func (a *authority) sign(t *testing.T, expires time.Time) (certificate, key string) {
	t.Helper()
	certificate, private := a.make(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: expires,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return certificate, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// files are those that the server reads.
type files string

func (f files) path(name string) string { return filepath.Join(string(f), name) }

// write replaces each file as one.
func (f files) write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(f.path("new"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(f.path("new"), f.path(name)); err != nil {
		t.Fatal(err)
	}
}

func (f files) issue(t *testing.T, from *authority, expires time.Time) {
	t.Helper()
	certificate, key := from.sign(t, expires)
	f.write(t, "tls.crt", certificate)
	f.write(t, "tls.key", key)
	f.write(t, "ca.crt", from.pem)
}

func (f files) arguments() []string {
	return []string{"--certificate", f.path("tls.crt"), "--key", f.path("tls.key")}
}

var one = script{Metric: "mica-pending-claims", Target: 1, Value: 1, Active: true}

func TestTheServersCertificate(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	f := files(t.TempDir())
	f.issue(t, ca, time.Now().Add(time.Hour))
	s := serve(t, one, f.arguments()...)
	if err := errors.Join(
		gets(poll(t, config(s.address, map[string]string{"caCert": ca.pem})), "1", true),
		refused(poll(t, config(s.address, map[string]string{"caCert": other.pem})), "Unavailable", "certificate signed by unknown authority"),
		refused(poll(t, config(s.address, nil)), "Unavailable"),
	); err != nil {
		t.Error(err)
	}
	active, specs := push(t, config(s.address, map[string]string{"caCert": ca.pem}))
	if !receive(t, "the state", active) {
		t.Error("it is not active")
	}
	if err := specOf("1", receive(t, "the spec", specs)); err != nil {
		t.Error(err)
	}
}

// pkg/elastic/keda tests which certificates are refused.
func TestAClientsCertificate(t *testing.T) {
	ca := newAuthority(t)
	f := files(t.TempDir())
	f.issue(t, ca, time.Now().Add(time.Hour))
	s := serve(t, one, append(f.arguments(), "--client-ca", f.path("ca.crt"))...)
	certificate, key := ca.sign(t, time.Now().Add(time.Hour))
	if err := gets(poll(t, config(s.address, map[string]string{"caCert": ca.pem, "tlsClientCert": certificate, "tlsClientKey": key})), "1", true); err != nil {
		t.Error(err)
	}
}
