package supervisor

import (
	"path/filepath"
	"strconv"

	"github.com/mica-gpu/mica/test/cluster/internal/layout"
	"github.com/mica-gpu/mica/test/cluster/internal/process"
)

const (
	etcdURL     = "http://127.0.0.1:2379"
	etcdAddress = "127.0.0.1:2379"
	etcdPeerURL = "http://127.0.0.1:2380"
)

// Names of components, as the control socket and the log files know them.
const (
	etcd              = "etcd"
	apiserver         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
	kubelet           = "kubelet"
	containerd        = "containerd"
	simulator         = "nvml-sim"
)

// commands are the components' command lines. Everything not said here or in
// the files of package render is a stock default.
func commands(spec Spec) map[string]process.Command {
	all := map[string]process.Command{
		etcd:              {Args: etcdArgs(spec.Dir)},
		apiserver:         {Args: apiserverArgs(spec.Dir)},
		controllerManager: {Args: controllerManagerArgs(spec.Dir)},
		scheduler:         {Args: schedulerArgs(spec.Dir)},
		kubelet:           {Args: kubeletArgs(spec.Dir)},
		containerd: {
			Args: []string{"--config", config(spec.Dir, "containerd.toml")},
			// It looks for its shim next to itself, and for helpers on PATH.
			Env: []string{"PATH=" + filepath.Dir(spec.Binaries[containerd]) + ":" + systemPath},
		},
	}
	if spec.SimNode != "" {
		all[simulator] = process.Command{Args: []string{
			"serve", "--node", spec.SimNode, "--socket", spec.Dir.SimSocket(), "--root", spec.Dir.Driver(),
		}}
	}
	if spec.Emulate != "" {
		// https://kubernetes.io/docs/concepts/cluster-administration/compatibility-version/. A kubelet has no such version.
		for _, name := range []string{apiserver, controllerManager, scheduler} {
			command := all[name]
			command.Args = append(command.Args, "--emulated-version=kube="+spec.Emulate)
			all[name] = command
		}
	}
	for name, command := range all {
		command.Name = name
		command.Path = spec.Binaries[name]
		command.Log = spec.Dir.Log(name)
		all[name] = command
	}
	return all
}

const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func etcdArgs(dir layout.Dir) []string {
	return []string{
		"--name=mica",
		"--data-dir=" + dir.Etcd(),
		"--listen-client-urls=" + etcdURL,
		"--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=" + etcdPeerURL,
		"--initial-advertise-peer-urls=" + etcdPeerURL,
		"--initial-cluster=mica=" + etcdPeerURL,
		// The cluster is thrown away before power can fail.
		"--unsafe-no-fsync",
	}
}

func apiserverArgs(dir layout.Dir) []string {
	return []string{
		// All addresses of the sandbox's network namespace, none of the
		// machine's.
		"--bind-address=0.0.0.0",
		"--secure-port=" + strconv.Itoa(layout.APIPort),
		"--advertise-address=" + layout.NodeIP,
		"--etcd-servers=" + etcdURL,
		"--service-cluster-ip-range=" + layout.ServiceCIDR,
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--client-ca-file=" + pkiFile(dir, "ca.crt"),
		"--tls-cert-file=" + pkiFile(dir, "kube-apiserver.crt"),
		"--tls-private-key-file=" + pkiFile(dir, "kube-apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + pkiFile(dir, "service-accounts.pub"),
		"--service-account-signing-key-file=" + pkiFile(dir, "service-accounts.key"),
		"--kubelet-certificate-authority=" + pkiFile(dir, "ca.crt"),
		"--kubelet-client-certificate=" + pkiFile(dir, "kubelet-client.crt"),
		"--kubelet-client-key=" + pkiFile(dir, "kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file=" + pkiFile(dir, "front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file=" + pkiFile(dir, "front-proxy-client.crt"),
		"--proxy-client-key-file=" + pkiFile(dir, "front-proxy-client.key"),
		// Without kube-proxy a Service's address leads nowhere, so webhooks
		// and aggregated APIs are called at their pods' addresses.
		"--enable-aggregator-routing=true",
		// What Mica asks of it, 256 MB at most. Older lines would be lost, and the tests would say so.
		"--audit-policy-file=" + config(dir, "audit.yaml"),
		"--audit-log-path=" + dir.AuditLog(),
		"--audit-log-maxsize=64",
		"--audit-log-maxbackup=3",
	}
}

func controllerManagerArgs(dir layout.Dir) []string {
	kubeconfig := config(dir, controllerManager+".kubeconfig")
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1",
		"--leader-elect=false",
		"--use-service-account-credentials=true",
		"--root-ca-file=" + pkiFile(dir, "ca.crt"),
		"--service-account-private-key-file=" + pkiFile(dir, "service-accounts.key"),
		// It makes the directory; the default is the machine's.
		"--flex-volume-plugin-dir=" + filepath.Join(dir.Kubelet(), "volume-plugins"),
		"--cluster-signing-cert-file=" + pkiFile(dir, "ca.crt"),
		"--cluster-signing-key-file=" + pkiFile(dir, "ca.key"),
	}
}

func schedulerArgs(dir layout.Dir) []string {
	kubeconfig := config(dir, scheduler+".kubeconfig")
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1",
		"--leader-elect=false",
	}
}

func kubeletArgs(dir layout.Dir) []string {
	return []string{
		"--config=" + config(dir, "kubelet.yaml"),
		"--kubeconfig=" + config(dir, kubelet+".kubeconfig"),
		"--root-dir=" + dir.Kubelet(),
		"--cert-dir=" + filepath.Join(dir.Kubelet(), "pki"),
		"--hostname-override=" + layout.NodeName,
		"--node-ip=" + layout.NodeIP,
	}
}

func pkiFile(dir layout.Dir, name string) string { return filepath.Join(dir.PKI(), name) }

func config(dir layout.Dir, name string) string { return filepath.Join(dir.Config(), name) }
