# Declarative management: client-side and server-side apply, diff, prune, patches.
kubectl create namespace apply
kubectl -n apply apply -f web.yaml
kubectl -n apply apply -f web.yaml
kubectl -n apply wait --for=jsonpath='{.metadata.annotations.deployment\.kubernetes\.io/revision}'=1 deployment/web --timeout=50s
kubectl -n apply diff -f changed.yaml
kubectl -n apply apply -f changed.yaml
kubectl -n apply get deployment web -o jsonpath='{.spec.replicas} {.metadata.generation} {.spec.template.spec.containers[*].name}'
kubectl -n apply apply view-last-applied deployment web
kubectl -n apply apply -f broken.yaml
kubectl -n apply apply -f unknown.yaml
kubectl -n apply apply -f unknown.yaml --validate=warn
kubectl -n apply apply -f unknown.yaml --validate=ignore
kubectl -n apply create -f duplicate.yaml
kubectl -n apply apply --server-side -f owned.yaml
kubectl -n apply get configmap owned -o yaml --show-managed-fields
kubectl -n apply apply --server-side --field-manager=other -f contested.yaml
kubectl -n apply apply --server-side --field-manager=other --force-conflicts -f contested.yaml
kubectl -n apply get configmap owned -o yaml --show-managed-fields
kubectl -n apply apply --server-side --field-manager=other -f released.yaml
kubectl -n apply get configmap owned -o jsonpath='{.data}'
kubectl -n apply apply --server-side -f service.yaml
kubectl -n apply apply --server-side -f service2.yaml
kubectl -n apply get service multi -o jsonpath='{.spec.ports[*].name}'
kubectl -n apply apply --server-side --dry-run=server -f owned.yaml -o yaml
kubectl -n apply apply --dry-run=server -f dry.yaml -o yaml
kubectl -n apply get configmap dry
kubectl -n apply diff --server-side -f contested.yaml
kubectl -n apply patch configmap owned -p '{"data":{"a":"patched"}}'
kubectl -n apply patch configmap owned --type=merge -p '{"data":{"a":null}}'
kubectl -n apply patch configmap owned --type=json -p '[{"op":"add","path":"/data/c","value":"3"}]'
kubectl -n apply patch configmap owned --type=json -p '[{"op":"test","path":"/data/c","value":"4"}]'
kubectl -n apply patch configmap owned --type=json -p '[{"op":"remove","path":"/data/none"}]'
kubectl -n apply patch configmap owned --type=json -p 'nonsense'
kubectl -n apply patch configmap owned --type=merge -p '{"metadata":{"name":"renamed"}}'
kubectl -n apply patch deployment web -p '{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"nginx:3"}]}}}}'
kubectl -n apply patch deployment web -p '{"spec":{"template":{"spec":{"containers":[{"name":"side","$patch":"delete"}]}}}}'
kubectl -n apply get deployment web -o jsonpath='{.spec.template.spec.containers[*].name}'
kubectl -n apply patch deployment web -p '{"spec":{"selector":{"matchLabels":{"app":"other"}}}}'
kubectl -n apply patch deployment web --subresource=status --type=merge -p '{"status":{"conditions":[{"type":"Custom","status":"True"}]}}' -o jsonpath='{.status.conditions[?(@.type=="Custom")].status}'
kubectl -n apply patch deployment web --subresource=scale --type=merge -p '{"spec":{"replicas":2}}'
kubectl -n apply get deployment web --subresource=scale -o yaml
kubectl -n apply apply -f pruned.yaml -l set=p
kubectl -n apply apply -f kept.yaml -l set=p --prune --prune-allowlist=core/v1/ConfigMap
kubectl -n apply get configmap -l set=p
kubectl -n apply apply -k .
kubectl kustomize .
kubectl -n apply get configmap -l from=kustomize -o name
kubectl -n apply delete -f web.yaml
kubectl -n apply replace --force -f owned.yaml
kubectl delete namespace apply --wait=false
-- web.yaml --
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: nginx:1
        ports: [{containerPort: 80}]
-- changed.yaml --
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  labels: {team: one}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: nginx:2
      - name: side
        image: busybox
-- broken.yaml --
apiVersion: apps/v1
kind: Deployment
metadata:
  name: Broken_Name
spec:
  replicas: -1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: other}}
    spec:
      restartPolicy: Never
      containers:
      - name: web
        image: ""
        ports: [{containerPort: 70000}]
-- unknown.yaml --
apiVersion: v1
kind: ConfigMap
metadata:
  name: unknown
  lables: {a: b}
data: {a: "1"}
extra: field
-- duplicate.yaml --
apiVersion: v1
kind: ConfigMap
metadata:
  name: duplicate
data: {a: "1"}
data: {a: "2"}
-- owned.yaml --
apiVersion: v1
kind: ConfigMap
metadata:
  name: owned
data: {a: "1", b: "2"}
-- contested.yaml --
apiVersion: v1
kind: ConfigMap
metadata:
  name: owned
data: {a: "9"}
-- released.yaml --
apiVersion: v1
kind: ConfigMap
metadata:
  name: owned
data: {}
-- service.yaml --
apiVersion: v1
kind: Service
metadata: {name: multi}
spec:
  selector: {app: web}
  ports:
  - {name: http, port: 80}
  - {name: https, port: 443}
-- service2.yaml --
apiVersion: v1
kind: Service
metadata: {name: multi}
spec:
  selector: {app: web}
  ports:
  - {name: https, port: 443}
-- dry.yaml --
apiVersion: v1
kind: ConfigMap
metadata: {name: dry}
data: {a: "1"}
-- pruned.yaml --
apiVersion: v1
kind: ConfigMap
metadata: {name: one, labels: {set: p}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: two, labels: {set: p}}
-- kept.yaml --
apiVersion: v1
kind: ConfigMap
metadata: {name: one, labels: {set: p}}
-- kustomization.yaml --
labels:
- pairs: {from: kustomize}
namePrefix: k-
resources: [dry.yaml]
