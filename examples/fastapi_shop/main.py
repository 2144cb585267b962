"""A shop with FastAPI: `BALANCER_DIRECTORY=zk://zk1:2181/shop uvicorn main:app`."""

import os
from typing import Annotated, Any

from fastapi import Depends, FastAPI
from pydantic import BaseModel
from sqlalchemy import BigInteger, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from balancer.client import PoolSettings
from balancer.client.fastapi import KeyShard, at_key, install, lifespan

app = FastAPI(lifespan=lifespan(os.environ["BALANCER_DIRECTORY"], PoolSettings(size=8)))
install(app)
Orders = Annotated[KeyShard, Depends(at_key("orders", "user_id"))]


class NewOrder(BaseModel):
    """What a client sends."""

    amount: int


class Base(DeclarativeBase):
    """The shop's models."""


class Order(Base):
    """An order of a user."""

    __tablename__ = "orders"
    user_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    amount: Mapped[int]


@app.post("/users/{user_id}/orders", status_code=201)
async def place(orders: Orders, new: NewOrder) -> dict[str, Any]:
    """Plain SQL with psycopg."""
    made = await orders.router.ids("orders").next()
    async with orders.transaction() as connection:
        await connection.execute(
            "INSERT INTO orders (user_id, id, amount) VALUES (%s, %s, %s)", (orders.key, made, new.amount)
        )
    return {"id": made, "node": orders.location.node}


@app.get("/users/{user_id}/orders")
async def listed(orders: Orders) -> list[dict[str, Any]]:
    """The same rows by SQLAlchemy."""
    async with orders.session(read_only=True) as session:
        found = await session.scalars(select(Order).where(Order.user_id == orders.key).order_by(Order.id))
        return [{"id": order.id, "amount": order.amount} for order in found]


@app.patch("/users/{user_id}/orders/{order_id}")
async def changed(orders: Orders, order_id: int, new: NewOrder) -> dict[str, Any]:
    """A change of an object."""
    async with orders.session() as session:
        order = await session.get_one(Order, (orders.key, order_id))
        order.amount = new.amount
    return {"id": order_id}
