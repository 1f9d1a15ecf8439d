package environment

import (
	"bytes"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
)

// Hosts returns the pod's /etc/hosts. A pod on the host network gets the node's file, node, followed by its own aliases.
func Hosts(pod *corev1.Pod, podIPs []string, clusterDomain string, node []byte) ([]byte, error) {
	var text bytes.Buffer
	if pod.Spec.HostNetwork {
		text.WriteString("# Kubernetes-managed hosts file (host network).\n")
		text.Write(node)
	} else {
		hostname, domain, err := Hostname(pod, clusterDomain)
		if err != nil {
			return nil, err
		}
		text.WriteString("# Kubernetes-managed hosts file.\n" +
			"127.0.0.1\tlocalhost\n" +
			"::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"fe00::0\tip6-localnet\n" +
			"fe00::0\tip6-mcastprefix\n" +
			"fe00::1\tip6-allnodes\n" +
			"fe00::2\tip6-allrouters\n")
		names := hostname
		if domain != "" {
			names = hostname + "." + domain + "\t" + hostname
		}
		for _, ip := range podIPs {
			fmt.Fprintf(&text, "%s\t%s\n", ip, names)
		}
	}
	if len(pod.Spec.HostAliases) > 0 {
		text.WriteString("\n# Entries added by HostAliases.\n")
		for _, alias := range pod.Spec.HostAliases {
			fmt.Fprintf(&text, "%s\t%s\n", alias.IP, strings.Join(alias.Hostnames, "\t"))
		}
	}
	return text.Bytes(), nil
}

const (
	maxHostnameLength = 63 // the kernel allows 64 bytes, DNS labels 63
	maxFQDNLength     = 64
)

// Hostname returns the pod's host name and its domain, which is empty for pods without a subdomain.
func Hostname(pod *corev1.Pod, clusterDomain string) (hostname, domain string, err error) {
	if override := pod.Spec.HostnameOverride; override != nil {
		if problems := validation.IsDNS1123Subdomain(*override); len(problems) != 0 {
			return "", "", fmt.Errorf("pod HostnameOverride %q is not a valid DNS subdomain: %s", *override, strings.Join(problems, ";"))
		}
		hostname, err = truncateHostname(pod.Name, *override)
		return hostname, "", err
	}
	hostname = pod.Name
	if pod.Spec.Hostname != "" {
		if problems := validation.IsDNS1123Label(pod.Spec.Hostname); len(problems) != 0 {
			return "", "", fmt.Errorf("pod Hostname %q is not a valid DNS label: %s", pod.Spec.Hostname, strings.Join(problems, ";"))
		}
		hostname = pod.Spec.Hostname
	}
	if hostname, err = truncateHostname(pod.Name, hostname); err != nil {
		return "", "", err
	}
	if pod.Spec.Subdomain != "" {
		if problems := validation.IsDNS1123Label(pod.Spec.Subdomain); len(problems) != 0 {
			return "", "", fmt.Errorf("pod Subdomain %q is not a valid DNS label: %s", pod.Spec.Subdomain, strings.Join(problems, ";"))
		}
		domain = fmt.Sprintf("%s.%s.svc.%s", pod.Spec.Subdomain, pod.Namespace, clusterDomain)
	}
	return hostname, domain, nil
}

// KernelHostname returns the host name of the pod's UTS namespace: its host name, or its FQDN if the pod requests that.
// It is empty for pods on the host network.
func KernelHostname(pod *corev1.Pod, clusterDomain string) (string, error) {
	hostname, domain, err := Hostname(pod, clusterDomain)
	if err != nil || pod.Spec.HostNetwork {
		return "", err
	}
	if domain == "" || !ptr.Deref(pod.Spec.SetHostnameAsFQDN, false) {
		return hostname, nil
	}
	fqdn := hostname + "." + domain
	if len(fqdn) > maxFQDNLength {
		return "", fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is the max, %d characters requested)",
			fqdn, maxFQDNLength, len(fqdn))
	}
	return fqdn, nil
}

// truncateHostname truncates a host name to the maximum length, without a trailing separator.
func truncateHostname(pod, hostname string) (string, error) {
	if len(hostname) <= maxHostnameLength {
		return hostname, nil
	}
	short := strings.TrimRight(hostname[:maxHostnameLength], "-.")
	if short == "" {
		return "", fmt.Errorf("hostname for pod %q was invalid: %q", pod, hostname)
	}
	return short, nil
}
