// Package pki makes the keys and certificates of a cluster that lives for an
// hour: one authority for servers and clients, one for the API aggregator,
// and the service accounts' key pair. It keeps no authority's key beyond what
// the components themselves need.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// lifetime is longer than any cluster on one machine is kept.
const lifetime = 365 * 24 * time.Hour

// Leaf is a certificate to be issued.
type Leaf struct {
	// File is the name of its files, without extension.
	File string
	// User and Groups are the client's identity in Kubernetes.
	User   string
	Groups []string
	// Hosts are the DNS names and IP addresses of a server. A leaf without
	// them is a client's only.
	Hosts []string
}

// Authority signs leaves.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
}

// NewAuthority makes an authority and writes name.crt and name.key into dir.
func NewAuthority(dir, name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of authority %s: %w", name, err)
	}
	template, err := newTemplate(pkix.Name{CommonName: "mica-" + name})
	if err != nil {
		return nil, fmt.Errorf("making the certificate of authority %s: %w", name, err)
	}
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing the certificate of authority %s: %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading back the certificate of authority %s: %w", name, err)
	}
	return &Authority{cert: cert, key: key, dir: dir}, write(dir, name, der, key)
}

// Issue signs a leaf and writes File.crt and File.key.
func (a *Authority) Issue(leaf Leaf) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("making the key of %s: %w", leaf.File, err)
	}
	template, err := newTemplate(pkix.Name{CommonName: leaf.User, Organization: leaf.Groups})
	if err != nil {
		return fmt.Errorf("making the certificate of %s: %w", leaf.File, err)
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(leaf.Hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, host := range leaf.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("signing the certificate of %s: %w", leaf.File, err)
	}
	return write(a.dir, leaf.File, der, key)
}

// WriteKeyPair makes the key pair that signs service account tokens and writes
// name.key and name.pub into dir.
func WriteKeyPair(dir, name string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("making the key pair %s: %w", name, err)
	}
	if err := writeKey(dir, name, key); err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encoding the public key %s: %w", name, err)
	}
	return writePEM(filepath.Join(dir, name+".pub"), "PUBLIC KEY", der, 0o644)
}

func newTemplate(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		// A certificate is used in the second in which it is made, by
		// processes whose clock may have been read before.
		NotBefore: now.Add(-time.Hour),
		NotAfter:  now.Add(lifetime),
	}, nil
}

func write(dir, name string, der []byte, key *ecdsa.PrivateKey) error {
	if err := writeKey(dir, name, key); err != nil {
		return err
	}
	return writePEM(filepath.Join(dir, name+".crt"), "CERTIFICATE", der, 0o644)
}

func writeKey(dir, name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encoding the key %s: %w", name, err)
	}
	return writePEM(filepath.Join(dir, name+".key"), "EC PRIVATE KEY", der, 0o600)
}

func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	data := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(path, data, mode); err != nil {
		return fmt.Errorf("writing a key or certificate: %w", err)
	}
	return nil
}
