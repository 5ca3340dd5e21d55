package pki

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
)

func TestIssuedCertificatesVerifyForTheirPurposeOnly(t *testing.T) {
	dir := t.TempDir()
	authority, err := NewAuthority(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	for _, leaf := range []Leaf{
		{File: "server", User: "kube-apiserver", Hosts: []string{"127.0.0.1", "kubernetes.default"}},
		{File: "client", User: "system:node:a", Groups: []string{"system:nodes"}},
	} {
		if err := authority.Issue(leaf); err != nil {
			t.Fatal(err)
		}
	}
	roots := x509.NewCertPool()
	roots.AddCert(read(t, dir, "ca"))
	server, client := read(t, dir, "server"), read(t, dir, "client")

	asServer := func(host string) x509.VerifyOptions {
		return x509.VerifyOptions{Roots: roots, DNSName: host, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	}
	for _, host := range []string{"127.0.0.1", "kubernetes.default"} {
		if _, err := server.Verify(asServer(host)); err != nil {
			t.Errorf("the server is not %s: %v", host, err)
		}
	}
	if _, err := server.Verify(asServer("10.96.0.1")); err == nil {
		t.Error("the server passes for an address that is not its own")
	}
	if _, err := client.Verify(asServer("")); err == nil {
		t.Error("the client passes for a server")
	}
	asClient := x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := client.Verify(asClient); err != nil {
		t.Errorf("the client does not verify: %v", err)
	}
	if client.Subject.CommonName != "system:node:a" || client.Subject.Organization[0] != "system:nodes" {
		t.Errorf("the client is %s", client.Subject)
	}
}

func TestKeysAreTheirOwnersAlone(t *testing.T) {
	dir := t.TempDir()
	if _, err := NewAuthority(dir, "ca"); err != nil {
		t.Fatal(err)
	}
	if err := WriteKeyPair(dir, "service-accounts"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca.key", "service-accounts.key"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", name, info.Mode().Perm())
		}
	}
}

func read(t *testing.T, dir, name string) *x509.Certificate {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name+".crt"))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		t.Fatalf("%s.crt holds no PEM", name)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}
