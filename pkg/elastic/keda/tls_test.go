package keda

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/mica-gpu/mica/test/fixture"
)

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

// pair is a certificate and its key in PEM.
type pair struct{ certificate, key []byte }

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: t.Name()},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(240 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

// sign is for servers at 127.0.0.1 and for clients.
func (a *authority) sign(t *testing.T, serial int64, expires time.Time) pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: expires.Add(-24 * time.Hour), NotAfter: expires,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.certificate, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pair{
		certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}
}

// secret is a Secret as kubelet mounts it: files are links into a directory that is replaced as
// one, through a link.
type secret struct {
	dir     string
	version int
}

func (s *secret) write(t *testing.T, content map[string][]byte) {
	t.Helper()
	s.version++
	version := fmt.Sprintf("..%d", s.version)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(filepath.Join(s.dir, version), 0o700))
	for name, data := range content {
		must(os.WriteFile(filepath.Join(s.dir, version, name), data, 0o600))
		if s.version == 1 {
			must(os.Symlink(filepath.Join("..data", name), filepath.Join(s.dir, name)))
		}
	}
	must(os.Symlink(version, filepath.Join(s.dir, "..new")))
	must(os.Rename(filepath.Join(s.dir, "..new"), filepath.Join(s.dir, "..data")))
	if s.version > 1 {
		must(os.RemoveAll(filepath.Join(s.dir, fmt.Sprintf("..%d", s.version-1))))
	}
}

func (s *secret) files(clientCA bool) Files {
	f := Files{Certificate: filepath.Join(s.dir, "tls.crt"), Key: filepath.Join(s.dir, "tls.key")}
	if clientCA {
		f.ClientCA = filepath.Join(s.dir, "ca.crt")
	}
	return f
}

func content(p pair, ca *authority) map[string][]byte {
	return map[string][]byte{"tls.crt": p.certificate, "tls.key": p.key, "ca.crt": ca.pem}
}

// serial is that of the certificate which the server shows; an error where it shows none or
// refuses the client after reading its certificate, if any.
func serial(address string, root *authority, client *pair) (int64, error) {
	config := &tls.Config{RootCAs: x509.NewCertPool(), NextProtos: []string{"h2"}}
	config.RootCAs.AddCert(root.certificate)
	if client != nil {
		own, err := tls.X509KeyPair(client.certificate, client.key)
		if err != nil {
			return 0, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	connection, err := tls.Dial("tcp", address, config)
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	// In TLS 1.3 a client knows that it was refused when it reads.
	if _, err := connection.Read(make([]byte, 1)); err != nil {
		return 0, err
	}
	return connection.ConnectionState().PeerCertificates[0].SerialNumber.Int64(), nil
}

func TestANewCertificateIsServedAndABrokenOneIsNot(t *testing.T) {
	ca := newAuthority(t)
	files := &secret{dir: t.TempDir()}
	expires := time.Now().Add(time.Hour)
	files.write(t, content(ca.sign(t, 1, expires), ca))
	server := run(t, files.files(false), testingclock.NewFakeClock(time.Now()), answerer{})
	shows := func(want int64) func() error {
		return func() error {
			got, err := serial(server.address, ca, nil)
			if err == nil && got != want {
				err = fmt.Errorf("it shows certificate %d, want %d", got, want)
			}
			return err
		}
	}
	if err := shows(1)(); err != nil {
		t.Fatal(err)
	}
	for name, broken := range map[string]pair{
		"nonsense":               {[]byte("nonsense"), []byte("nonsense")},
		"empty":                  {},
		"another's key":          {ca.sign(t, 9, expires).certificate, ca.sign(t, 9, expires).key},
		"a certificate, no more": {ca.sign(t, 9, expires).certificate, nil},
	} {
		t.Run(name, func(t *testing.T) {
			files.write(t, content(broken, ca))
			if err := shows(1)(); err != nil {
				t.Error(err)
			}
			files.write(t, content(ca.sign(t, 2, expires), ca))
			fixture.Eventually(t, "the next certificate", shows(2))
			files.write(t, content(ca.sign(t, 1, expires), ca))
			fixture.Eventually(t, "the one after it", shows(1))
		})
	}
	if _, err := server.client(t, credentials.NewClientTLSFromCert(pool(ca), "")).IsActive(t.Context(), trigger("vllm")); err != nil {
		t.Errorf("KEDA gets no answer: %v", err)
	}
}

func pool(a *authority) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.certificate)
	return p
}

func TestClientsAreVerifiedWithTheCAAsItIs(t *testing.T) {
	ca, later := newAuthority(t), newAuthority(t)
	now := time.Now()
	files := &secret{dir: t.TempDir()}
	own := ca.sign(t, 1, now.Add(time.Hour))
	files.write(t, content(own, ca))
	server := run(t, files.files(true), testingclock.NewFakeClock(now), answerer{})
	good, expired, foreign := ca.sign(t, 2, now.Add(time.Hour)), ca.sign(t, 3, now.Add(-time.Hour)), later.sign(t, 4, now.Add(time.Hour))
	for name, test := range map[string]struct {
		client *pair
		want   string // part of what the client is told; nothing where it is let in
	}{
		"signed":         {&good, ""},
		"none":           {nil, "certificate required"},
		"expired":        {&expired, "expired certificate"},
		"foreign":        {&foreign, "unknown certificate authority"},
		"signed, again":  {&good, ""},
		"expired, again": {&expired, "expired certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := serial(server.address, ca, test.client)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
	if !strings.Contains(server.log.String(), "TLS handshake with a client of KEDA's external scaler failed") {
		t.Errorf("the log says nothing of those that were refused:\n%s", server.log)
	}
	files.write(t, content(own, later))
	fixture.Eventually(t, "the other CA counts", func() error {
		if _, err := serial(server.address, ca, &foreign); err != nil {
			return err
		}
		if _, err := serial(server.address, ca, &good); err == nil {
			return fmt.Errorf("who was signed by the CA before is let in")
		}
		return nil
	})
}

// A broken Secret is not to end the controller.
func TestItWaitsForACertificateThatCanBeRead(t *testing.T) {
	ca := newAuthority(t)
	files := &secret{dir: t.TempDir()}
	server := begin(t, files.files(false), testingclock.NewFakeClock(time.Now()), answerer{})
	const told = "Cannot serve KEDA until its certificate can be read"
	waits := func() error {
		if !server.clock.HasWaiters() {
			return fmt.Errorf("no timer is set")
		}
		return server.log.has(told, 1)
	}
	fixture.Eventually(t, "it waits", waits)
	server.clock.Step(time.Minute)
	fixture.Eventually(t, "it waits again and says no more", waits)
	files.write(t, content(ca.sign(t, 1, time.Now().Add(time.Hour)), ca))
	server.clock.Step(time.Minute)
	address := (<-server.listens).String()
	if _, err := serial(address, ca, nil); err != nil {
		t.Error(err)
	}
}
