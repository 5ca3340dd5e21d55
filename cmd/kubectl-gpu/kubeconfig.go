package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"
)

// bindKubeconfigFlags adds kubectl's flags for the cluster and the user. --cache-dir, --match-server-version and --kuberc
// are left out: there is no cache, no check of versions, and there are no preferences.
func bindKubeconfigFlags(flags *pflag.FlagSet, rules *clientcmd.ClientConfigLoadingRules, overrides *clientcmd.ConfigOverrides) {
	flags.StringVar(&rules.ExplicitPath, clientcmd.RecommendedConfigPathFlag, "", "the kubeconfig to use")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ClusterOverrideFlags.APIServer.ShortName = "s"
	clientcmd.BindOverrideFlags(overrides, flags, names)
	flags.Var(&userExtra{overrides}, "as-user-extra", "KEY=VALUE, an extra attribute of the user to impersonate; can be repeated")
}

// namespaceOf is the user's namespace. named reports whether a flag has set it.
func namespaceOf(config clientcmd.ClientConfig) (namespace string, named bool, err error) {
	namespace, named, err = config.Namespace()
	if err != nil {
		return "", false, kubeconfigError(config, err)
	}
	return namespace, named, nil
}

// kubeconfigError adds what to do about a kubeconfig without a cluster.
func kubeconfigError(config clientcmd.ClientConfig, err error) error {
	if clientcmd.IsEmptyConfig(err) {
		return errors.New("no cluster is known: give a kubeconfig by --kubeconfig or the variable KUBECONFIG, as for kubectl")
	}
	raw, unread := config.RawConfig()
	if contexts := slices.Sorted(maps.Keys(raw.Contexts)); unread == nil && clientcmd.IsContextNotFound(err) {
		const most = 10
		return fmt.Errorf("no such context in the kubeconfig: it has %s: %w", strings.Join(contexts[:min(len(contexts), most)], ", "), err)
	}
	return fmt.Errorf("read the kubeconfig: %w", err)
}

// userExtra is the flag --as-user-extra, which client-go has for kubeconfigs alone.
type userExtra struct{ overrides *clientcmd.ConfigOverrides }

// Set implements pflag.Value.
func (u *userExtra) Set(text string) error {
	key, value, found := strings.Cut(text, "=")
	if !found || key == "" {
		return fmt.Errorf("%q is not KEY=VALUE", text)
	}
	if u.overrides.AuthInfo.ImpersonateUserExtra == nil {
		u.overrides.AuthInfo.ImpersonateUserExtra = map[string][]string{}
	}
	u.overrides.AuthInfo.ImpersonateUserExtra[key] = append(u.overrides.AuthInfo.ImpersonateUserExtra[key], value)
	return nil
}

// String implements pflag.Value: there is no default.
func (*userExtra) String() string { return "" }

// Type implements pflag.Value.
func (*userExtra) Type() string { return "stringArray" }
