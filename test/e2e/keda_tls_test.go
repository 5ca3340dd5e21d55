//go:build e2e

package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/keyutil"
)

const (
	chartDirectory = "../../deployments/helm/mica"
	scalerSecret   = "e2e-keda-scaler"
	clientSecret   = "mica-keda-client"
)

// TestKEDAWithCertificates changes the installation, and so runs apart from all others.
func TestKEDAWithCertificates(t *testing.T) {
	requireKEDA(t)
	s := &scaleOut{scenario: newScenario(t, 2)}
	host := "mica-controller-keda." + s.plugin.namespace + ".svc"
	authority, stranger := newAuthority(t), newAuthority(t)
	s.createSecret(s.plugin.namespace, scalerSecret, authority.pair(t, host))
	s.createSecret(s.namespace, clientSecret, authority.pair(t, "keda"))
	strange := stranger.pair(t, "keda")
	strange[caFile] = authority.certificate
	s.createSecret(s.namespace, "stranger", strange)

	s.helm("upgrade", "mica", chartDirectory, "--reuse-values", "--set", "controller.keda.tls.secretName="+scalerSecret,
		"--set", "controller.keda.tls.requireClientCertificate=true")
	t.Cleanup(func() { s.helm("rollback", "mica") })

	s.createTemplate("one", s.claimFor(1))
	known := s.newScaled("known", s.ending(s.podFromTemplate("", "one")))
	s.newScaled("strange", s.ending(s.podFromTemplate("", "one")))
	known.waiting(0)
	for _, arguments := range []string{
		"deployment/known --tls-secret " + clientSecret + " --client-certificate",
		"deployment/strange --tls-secret stranger --client-certificate",
	} {
		for _, name := range s.applyAsUser(s.printScaledObject(arguments + " --profile realtime --model known --max 2")) {
			t.Cleanup((&scaled{s, name}).unscale)
		}
	}
	known.expectReplicas(1)
	known.expectStatusCondition("Ready", "True", "ScaledObjectReady")
	known.expectHealthy()
	// The ScaledObject stays Ready: KEDA checks only its own triggers of a formula. It logs the refusal, and so does the controller.
	s.expectControllerLog("TLS handshake with a client of KEDA's external scaler failed")
}

// expectControllerLog waits until a controller's log has words. Controllers from before an upgrade may still go.
func (s *scaleOut) expectControllerLog(words string) {
	s.Helper()
	eventually(s, scaleTimeout, fmt.Sprintf("a controller logs %q", words), func(ctx context.Context) error {
		pods, err := s.client.CoreV1().Pods(s.plugin.namespace).List(ctx, metav1.ListOptions{LabelSelector: controllerSelector})
		if err != nil {
			return err
		}
		var failures []error
		for _, pod := range pods.Items {
			log, err := s.podLog(ctx, pod.Namespace, pod.Name, &corev1.PodLogOptions{})
			if err == nil && strings.Contains(log, words) {
				return nil
			}
			failures = append(failures, err)
		}
		return errors.Join(append(failures, fmt.Errorf("none of %d does", len(pods.Items)))...)
	})
}

func (s *scaleOut) createSecret(namespace, name string, data map[string][]byte) {
	s.Helper()
	secrets := s.client.CoreV1().Secrets(namespace)
	_, err := secrets.Create(s.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}, metav1.CreateOptions{})
	must(s, err, "create Secret %s", name)
	s.Cleanup(func() {
		if err := secrets.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			s.Errorf("delete Secret %s: %v", name, err)
		}
	})
}

// caFile is the key of a Secret for who signs.
const caFile = "ca.crt"

// authority signs certificates of an hour.
type authority struct {
	parsed      *x509.Certificate
	key         *ecdsa.PrivateKey
	certificate []byte
}

func newAuthority(t testing.TB) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err, "make a key")
	template := certificateOf("authority")
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err, "sign the authority's certificate")
	parsed, err := x509.ParseCertificate(der)
	must(t, err, "read the authority's certificate")
	return authority{parsed, key, pemOf(der)}
}

// pair is the content of a Secret for a server of that name, or a client.
func (a authority) pair(t testing.TB, host string) map[string][]byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err, "make a key")
	template := certificateOf(host)
	template.DNSNames = []string{host}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, a.parsed, key.Public(), a.key)
	must(t, err, "sign a certificate of %s", host)
	private, err := keyutil.MarshalPrivateKeyToPEM(key)
	must(t, err, "encode the key of %s", host)
	return map[string][]byte{caFile: a.certificate, corev1.TLSCertKey: pemOf(der), corev1.TLSPrivateKeyKey: private}
}

func certificateOf(name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
	}
}

func pemOf(der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}) }
