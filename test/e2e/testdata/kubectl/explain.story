# Discovery and documentation.
kubectl api-versions | grep -v -e beta -e alpha -e apiextensions -e apiregistration
kubectl api-resources --api-group='' --sort-by=name --no-headers | grep -v -e componentstatuses
kubectl api-resources --api-group=apps --sort-by=name -o wide
kubectl api-resources --api-group=batch --sort-by=name -o wide
kubectl api-resources --api-group=autoscaling --sort-by=name -o wide
kubectl api-resources --api-group=policy --sort-by=name -o wide
kubectl api-resources --api-group=networking.k8s.io --sort-by=name -o wide
kubectl api-resources --api-group=storage.k8s.io --sort-by=name -o wide
kubectl api-resources --api-group=rbac.authorization.k8s.io --sort-by=name -o wide
kubectl api-resources --api-group=scheduling.k8s.io --sort-by=name -o wide
kubectl api-resources --api-group=node.k8s.io --sort-by=name -o wide
kubectl api-resources --api-group=discovery.k8s.io --sort-by=name -o wide
kubectl api-resources --api-group=coordination.k8s.io --sort-by=name -o wide
kubectl api-resources --api-group=certificates.k8s.io --sort-by=name -o wide
kubectl api-resources --api-group=admissionregistration.k8s.io --sort-by=name -o wide
kubectl api-resources --api-group=authentication.k8s.io --sort-by=name -o wide
kubectl api-resources --api-group=authorization.k8s.io --sort-by=name -o wide
kubectl api-resources --api-group=events.k8s.io --sort-by=name -o wide
kubectl api-resources --api-group=flowcontrol.apiserver.k8s.io --sort-by=name -o wide
kubectl api-resources --api-group=resource.k8s.io --sort-by=name -o wide
kubectl explain pod
kubectl explain pod --recursive
kubectl explain pod.spec.containers.livenessProbe.httpGet
kubectl explain deployment.spec.strategy --recursive
kubectl explain deployment --recursive
kubectl explain statefulset --recursive
kubectl explain service.spec
kubectl explain cronjob --recursive
kubectl explain networkpolicy --recursive
kubectl explain hpa.spec.metrics
kubectl explain hpa --api-version=autoscaling/v1 --recursive
kubectl explain role --recursive
kubectl explain configmap
kubectl explain node.status.conditions
kubectl explain persistentvolume.spec --recursive
kubectl explain ingress --recursive
kubectl explain lease --recursive
kubectl explain event --recursive
kubectl explain resourceclaim --recursive
kubectl explain validatingadmissionpolicy --recursive
kubectl explain pod.spec.nothing
kubectl explain nothing
