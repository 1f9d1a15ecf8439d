package environment

import (
	"bytes"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Hosts is the text of the pod's /etc/hosts. A pod on the host's network gets the node's file, whose text is node, with its own aliases behind it.
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
	longestHostname = 63 // bytes the kernel has for a host name besides the final zero, less one as DNS wants it
	longestFQDN     = 64
)

// Hostname is the pod's host name and the domain below which it is known, which is empty for pods without a subdomain.
func Hostname(pod *corev1.Pod, clusterDomain string) (hostname, domain string, err error) {
	if override := pod.Spec.HostnameOverride; override != nil {
		if wrong := validation.IsDNS1123Subdomain(*override); len(wrong) != 0 {
			return "", "", fmt.Errorf("pod HostnameOverride %q is not a valid DNS subdomain: %s", *override, strings.Join(wrong, ";"))
		}
		hostname, err = cut(pod.Name, *override)
		return hostname, "", err
	}
	hostname = pod.Name
	if pod.Spec.Hostname != "" {
		if wrong := validation.IsDNS1123Label(pod.Spec.Hostname); len(wrong) != 0 {
			return "", "", fmt.Errorf("pod Hostname %q is not a valid DNS label: %s", pod.Spec.Hostname, strings.Join(wrong, ";"))
		}
		hostname = pod.Spec.Hostname
	}
	if hostname, err = cut(pod.Name, hostname); err != nil {
		return "", "", err
	}
	if pod.Spec.Subdomain != "" {
		if wrong := validation.IsDNS1123Label(pod.Spec.Subdomain); len(wrong) != 0 {
			return "", "", fmt.Errorf("pod Subdomain %q is not a valid DNS label: %s", pod.Spec.Subdomain, strings.Join(wrong, ";"))
		}
		domain = fmt.Sprintf("%s.%s.svc.%s", pod.Spec.Subdomain, pod.Namespace, clusterDomain)
	}
	return hostname, domain, nil
}

// KernelHostname is the name the pod's kernel reports: the host name, or the whole name where the pod wants that. Pods on the host's network keep the host's.
func KernelHostname(pod *corev1.Pod, clusterDomain string) (string, error) {
	hostname, domain, err := Hostname(pod, clusterDomain)
	if err != nil || pod.Spec.HostNetwork {
		return "", err
	}
	if domain == "" || !isTrue(pod.Spec.SetHostnameAsFQDN) {
		return hostname, nil
	}
	fqdn := hostname + "." + domain
	if len(fqdn) > longestFQDN {
		return "", fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is the max, %d characters requested)",
			fqdn, longestFQDN, len(fqdn))
	}
	return fqdn, nil
}

// cut shortens a name that is too long for the kernel, and leaves no separator at its end.
func cut(pod, hostname string) (string, error) {
	if len(hostname) <= longestHostname {
		return hostname, nil
	}
	short := strings.TrimRight(hostname[:longestHostname], "-.")
	if short == "" {
		return "", fmt.Errorf("hostname for pod %q was invalid: %q", pod, hostname)
	}
	return short, nil
}
